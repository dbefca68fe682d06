"""Files that are read from their start to their end, in one piece: compressed lines, CSV, JSON arrays."""

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from hydraulis.data.records.compressed import open_stream
from hydraulis.data.records.fields import BrokenRecord, UnreadableRestError, find_missing_field
from hydraulis.errors import InvalidInputError

# A parser of a stream of bytes: the number of each record, and its values by name if it is not broken.
Parsed: TypeAlias = tuple[int, dict[str, Any] | BrokenRecord]
Parser: TypeAlias = Callable[[BinaryIO], Iterator[Parsed]]

# Bytes on disk from which the number of records is estimated.
_SAMPLE_BYTES = 1 << 20


class StreamedFile:
    """A file in one piece, whose positions are the numbers that its parser gives to the records.

    Args:
        path: Path of the file; its ending may be that of a compression.
        fields: Names of the fields to read.
        optional: Names of those that a record may lack.
        parse: Parser of the content.
        noun: Word before a record's number in messages.

    Raises:
        OSError: The file cannot be read.
    """

    def __init__(
        self, path: Path, fields: Sequence[str], optional: Collection[str], parse: Parser, noun: str
    ) -> None:
        path.open("rb").close()
        self._path = path
        self._fields = fields
        self._required = [name for name in fields if name not in optional]
        self._parse = parse
        self._noun = noun

    def pieces(self) -> list[tuple[int, int]]:
        """Return the one piece; its end is estimated from the first records, for the display of progress."""
        size = self._path.stat().st_size
        last = 0
        with open_stream(self._path) as (content, raw), closing(self._parsed(content)) as records:
            for number, _ in records:
                last = number
                if raw.tell() >= _SAMPLE_BYTES:
                    break
            read = raw.tell()
        return [(0, 1 + last * size // max(1, min(read, size)))]

    def records(self, start: int, stop: int) -> Iterator[tuple[int, Sequence[object] | BrokenRecord]]:  # noqa: ARG002
        """Yield all records.

        Raises:
            InvalidInputError: The content is damaged, or nothing can be read after a record (code
                `data_file_invalid`).
        """
        with open_stream(self._path) as (content, _), closing(self._parsed(content)) as parsed:
            for number, record in parsed:
                if isinstance(record, BrokenRecord):
                    yield number, record
                else:
                    missing = find_missing_field(record, self._required)
                    yield number, missing or [record.get(name) for name in self._fields]

    def place(self, where: int) -> str:
        """Return the file and the number of a record."""
        return f"file '{self._path}', {self._noun} {where}"

    def _parsed(self, content: BinaryIO) -> Generator[Parsed, None, None]:
        try:
            yield from self._parse(content)
        except UnreadableRestError as error:
            message = f"{self.place(error.number)}{error.reason}; nothing after it can be read; correct it"
            raise InvalidInputError(message, code="data_file_invalid") from error
