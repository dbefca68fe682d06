"""The fields that a record must have."""

from collections.abc import Collection, Sequence

from hydraulis.data.records.broken_record import BrokenRecord

_CHAT = "messages"


def check_fields(names: Collection[str], fields: Sequence[str], place: str) -> None:
    """Refuse a file that lacks a field (code `record_field`).

    Args:
        names: of the fields that are there.
        fields: that are wanted.
        place: of the file, as the message begins.
    """
    broken = without_field(names, fields)
    if broken is not None:
        raise broken.error(place)


def without_field(names: Collection[str], fields: Sequence[str]) -> BrokenRecord | None:
    """Say which field a file or a record lacks, the same names given; None if it has all."""
    for field in fields:
        if field not in names:
            have = ", ".join(names) or "none"
            is_chat = (
                ", or its format to 'chat' (--format chat)" if _CHAT in names and _CHAT not in fields else ""
            )
            why = (
                f" has no field '{field}', its fields are {have}: set data.sources.fields (--field of "
                f"hydraulis analyze) to what every record has{is_chat}"
            )
            return BrokenRecord(why, code="record_field")
    return None
