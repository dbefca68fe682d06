"""Files that may be compressed with gzip or zstd, opened as streams of bytes.

gzip is read by the standard library, zstd by pyarrow, which the extra `data` has for Parquet.
"""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from hydraulis.errors import InvalidInputError
from hydraulis.extras import import_extra

COMPRESSIONS = (".gz", ".zst")


def inner_suffix(path: Path) -> str:
    """Return the ending of a file's name in lower case, without that of its compression."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in COMPRESSIONS else suffix


@contextmanager
def open_stream(path: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Open a file.

    Yields:
        The content without compression, and the file as it is on disk, whose position shows the progress.

    Raises:
        InvalidInputError: The content is damaged or incomplete (code `data_file_invalid`), also while it is
            read.
        HydraulisError: pyarrow is not installed, and the file needs it (code `extra_missing`).
        OSError: The file cannot be opened.
    """
    suffix = path.suffix.lower()
    pyarrow: Any = import_extra("pyarrow", f"the compressed file '{path}'") if suffix == ".zst" else None
    with path.open("rb") as raw:
        if suffix not in COMPRESSIONS:
            yield raw, raw
            return
        try:
            if pyarrow is None:
                with gzip.GzipFile(fileobj=raw) as content:
                    yield cast("BinaryIO", content), raw
            else:
                with pyarrow.CompressedInputStream(pyarrow.PythonFile(raw), "zstd") as content:
                    yield io.BufferedReader(content), raw
        except (OSError, EOFError, zlib.error) as error:
            message = (
                f"file '{path}' cannot be unpacked ({error}): it is damaged or incomplete; compress or copy "
                "it again"
            )
            raise InvalidInputError(message, code="data_file_invalid") from error
