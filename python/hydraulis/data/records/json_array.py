"""JSON arrays of objects, parsed one by one in memory that does not grow with the file."""

import codecs
import json
from collections.abc import Iterator
from typing import Any, BinaryIO, NoReturn

from hydraulis.data.records.fields import BrokenRecord, UnreadableRestError

_CHUNK_BYTES = 1 << 20
_SPACE = " \t\n\r"
# Characters at the end of a chunk in which an error may be the cut of a token such as `false`.
_LONGEST_TOKEN = 16


def is_json_array(content: BinaryIO) -> bool:
    """Whether a stream begins with an array."""
    while block := content.read(_CHUNK_BYTES):
        if text := block.removeprefix(codecs.BOM_UTF8).strip():
            return text.startswith(b"[")
    return False


def parse_json_array(content: BinaryIO) -> Iterator[tuple[int, dict[str, Any] | BrokenRecord]]:
    """Yield the elements, numbered from 1; an element that is no object is broken.

    Raises:
        UnreadableRestError: The array is no JSON in UTF-8.
    """
    text = _ArrayText(content)
    text.expect("[")
    while text.next() != "]" or text.number:
        value = text.element()
        no_object = BrokenRecord(" is no JSON object; write one with the fields", code="record_malformed")
        yield text.number, value if isinstance(value, dict) else no_object
        if text.next() == "]":
            break
        text.expect(",")
    text.expect("]")
    if text.next():
        text.fail("text follows the array")


class _ArrayText:
    """The text of an array.

    Attributes:
        number: Number of elements that are parsed.
    """

    def __init__(self, content: BinaryIO) -> None:
        self.number = 0
        self._content = content
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._json = json.JSONDecoder()
        self._text = ""
        self._place = 0

    def next(self) -> str:
        """Return the next character that is no space; an empty string at the end."""
        while True:
            while self._place < len(self._text) and self._text[self._place] in _SPACE:
                self._place += 1
            if self._place < len(self._text):
                return self._text[self._place]
            if not self._read():
                return ""

    def expect(self, character: str) -> None:
        """Step over a character."""
        found = self.next()
        if found != character:
            self.fail(f"'{character}' is expected" + ("" if found else ", and the file ends"))
        self._place += 1

    def element(self) -> object:
        """Parse an element."""
        self.next()
        self.number += 1
        while True:
            try:
                value, end = self._json.raw_decode(self._text, self._place)
            except json.JSONDecodeError as error:
                is_in_string = error.msg.startswith("Unterminated string")
                is_at_end = is_in_string or error.pos >= len(self._text.rstrip())
                is_cut = is_in_string or error.pos > len(self._text) - _LONGEST_TOKEN
                if not is_cut or not self._read():
                    self.fail("the file ends within it" if is_at_end else error.msg, error)
            except (ValueError, RecursionError) as error:
                self.fail(str(error), error)
            else:
                # A number may go on in the next chunk.
                if end < len(self._text) or not self._read():
                    self._place = end
                    return value

    def fail(self, reason: str, cause: Exception | None = None) -> NoReturn:
        """Refuse the text at the last element."""
        raise UnreadableRestError(max(1, self.number), f" is no JSON ({reason})") from cause

    def _read(self) -> bool:
        """Read on, at least as much as is left of the text; false at the end of the file."""
        left = self._text[self._place :]
        block = self._content.read(max(_CHUNK_BYTES, len(left)))
        try:
            more = self._decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            self.fail("it is not UTF-8", error)
        self._text, self._place = left + more, 0
        return bool(block)
