"""The fields that a record must have."""

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from hydraulis.errors import InvalidInputError
from hydraulis.extras import import_extra


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


def iterate_rows(batch: Any, fields: Sequence[str]) -> Iterator[Sequence[object]]:
    """Give the wanted fields of each row of a record batch; lists of integers as arrays, not copied."""
    return zip(*(_values(batch.column(batch.schema.get_field_index(name))) for name in fields), strict=True)


def _values(column: Any) -> Sequence[object]:
    pyarrow: Any = import_extra("pyarrow", "reading columns")
    kind = column.type
    is_list = pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind)
    plain = is_list and pyarrow.types.is_integer(kind.value_type) and not column.null_count
    # Nulls among the integers would make them floats.
    if plain and not column.values.null_count:
        values, offsets = column.values.to_numpy(), column.offsets.to_numpy()
        return [values[start:stop] for start, stop in pairwise(offsets)]
    result: list[object] = column.to_pylist()
    return result


_CHAT = "messages"


def check_fields(names: Collection[str], fields: Sequence[str], place: str) -> None:
    """Refuse a file that lacks a field (code `record_malformed`).

    Args:
        names: of the fields that are there.
        fields: that are wanted.
        place: of the file, as the message begins.
    """
    broken = find_missing_field(names, fields)
    if broken is not None:
        raise broken.error(place)


def find_missing_field(names: Collection[str], fields: Sequence[str]) -> BrokenRecord | None:
    """Say which field a file or a record lacks, the same names given; None if it has all."""
    for field in fields:
        if field not in names:
            have = ", ".join(names) or "none"
            is_chat = (
                ", or its format to 'chat' (--format chat)" if _CHAT in names and _CHAT not in fields else ""
            )
            why = (
                f" has no field '{field}', its fields are {have}: set data.sources.fields (--field of "
                f"hydraulis analyze) to fields that every record has{is_chat}"
            )
            return BrokenRecord(why, code="record_malformed")
    return None
