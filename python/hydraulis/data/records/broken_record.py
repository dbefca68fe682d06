"""What stands where a record must."""

from typing import NamedTuple

from hydraulis.errors import InvalidInputError


class BrokenRecord(NamedTuple):
    """What is wrong with it; a value, because where it stands takes a reading of the file up to it.

    Attributes:
        why: it is refused, and what to do, as it follows the place in a sentence.
        code: of the refusal.
    """

    why: str
    code: str

    def error(self, place: str) -> InvalidInputError:
        """Make the refusal of the record at a place."""
        why, code = self
        return InvalidInputError(f"{place}{why}", code=code)
