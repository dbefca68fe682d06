"""The files of a run's data, and their comparison with an earlier list by size."""

from collections.abc import Sequence
from dataclasses import dataclass

from hydraulis.config.data import DataConfig
from hydraulis.data.index.job import file_stamp
from hydraulis.data.sources.prepare import find_files


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file of the data.

    Attributes:
        path: Path of the file.
        bytes: Size in bytes.
    """

    path: str
    bytes: int


def list_data_files(config: DataConfig) -> list[DataFile]:
    """List the files of all sources, in order.

    Raises:
        InvalidInputError: A name matches nothing (see `source_files`), or a file cannot be read (code
            `data_file_invalid`).
    """
    by_source = (find_files(config, number) for number in range(len(config.sources)))
    paths = (path for records, mapped in by_source for path in (*records, *mapped))
    return [DataFile(path=str(path), bytes=file_stamp(path)[1]) for path in paths]


def describe_difference(before: Sequence[DataFile], now: Sequence[DataFile]) -> str | None:
    """Describe the first difference between two lists of files; None if their sizes are equal in order.

    Paths may differ, because files may be moved or renamed.
    """
    if [file.bytes for file in before] == [file.bytes for file in now]:
        return None
    sizes = {file.path: file.bytes for file in before}
    for file in now:
        size = sizes.get(file.path, file.bytes)
        if size != file.bytes:
            return f"file '{file.path}' has {file.bytes:,} bytes and had {size:,}"
    paths = {file.path for file in now}
    for path in sizes:
        if path not in paths:
            return f"file '{path}' has been removed"
    for path in sorted(paths):
        if path not in sizes:
            return f"file '{path}' is new"
    return "the files are in another order"
