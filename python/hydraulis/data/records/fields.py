"""The fields that a record must have."""

from collections.abc import Collection, Sequence

from hydraulis.errors import InvalidInputError

_CHAT = "messages"


def check_fields(names: Collection[str], fields: Sequence[str], place: str) -> None:
    """Refuse a file or a record that lacks a field (code `record_field`).

    Args:
        names: of the fields that are there.
        fields: that are wanted.
        place: of the file or the record, as the message begins.
    """
    for field in fields:
        if field not in names:
            have = ", ".join(names) or "none"
            is_chat = (
                ", or its format to 'chat' (--format chat)" if _CHAT in names and _CHAT not in fields else ""
            )
            message = (
                f"{place} has no field '{field}', its fields are {have}: set those of the source (--field of "
                f"hydraulis analyze) to what every record has{is_chat}"
            )
            raise InvalidInputError(message, code="record_field")
