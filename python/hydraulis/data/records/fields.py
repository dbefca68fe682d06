"""The fields of a record, and records that lack them."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from hydraulis.errors import InvalidInputError
from hydraulis.text.values import escape_unprintable


class BrokenRecord(NamedTuple):
    """An unreadable record; a value instead of an error, because its line number is expensive to find.

    Attributes:
        reason: Cause and remedy, "cause; remedy", which follow the place of the record in a message.
        code: Code of the error.
    """

    reason: str
    code: str

    def error(self, place: str) -> InvalidInputError:
        """Make the error for the record at a place."""
        reason, code = self
        return InvalidInputError(f"{place}{reason}", code=code)


class UnreadableRestError(Exception):
    """A record after which no record of the file can be found.

    Attributes:
        number: Number of the record.
        reason: Cause, which follows the place of the record in a message.
    """

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(number, reason)
        self.number, self.reason = number, reason


# The format of a record with a field.
_FORMAT_OF = {
    "messages": "'chat' (--format chat)",
    "conversations": "'chat' and its field to 'conversations' (--format chat --field conversations)",
    "instruction": "'alpaca' (--format alpaca)",
}


def check_fields(names: Sequence[str], fields: Sequence[str], optional: Collection[str], place: str) -> None:
    """Refuse a file that lacks a field, or has it twice.

    Args:
        names: Names of the file's fields.
        fields: Names of the fields to read.
        optional: Names of those that a file may lack.
        place: Name of the file at the start of the message.

    Raises:
        InvalidInputError: A field is missing, or two have its name (code `record_malformed`).
    """
    twice = next((name for name in fields if names.count(name) > 1), None)
    if twice is not None:
        message = f"{place} has the field '{twice}' twice; rename one of them"
        raise InvalidInputError(message, code="record_malformed")
    broken = find_missing_field(names, [name for name in fields if name not in optional])
    if broken is not None:
        raise broken.error(place)


def find_missing_field(names: Collection[str], fields: Sequence[str]) -> BrokenRecord | None:
    """Find the first of the required fields that `names` lacks; None if it has all."""
    for field in fields:
        if field not in names:
            have = escape_unprintable(", ".join(names)) or "none"
            found = (hint for name, hint in _FORMAT_OF.items() if name in names and name not in fields)
            or_format = f", or its format to {hint}" if (hint := next(found, "")) else ""
            reason = (
                f" has no field '{field}', its fields are {have}; set data.sources.fields (--field of "
                f"hydraulis analyze) to fields that every record has{or_format}"
            )
            return BrokenRecord(reason, code="record_malformed")
    return None
