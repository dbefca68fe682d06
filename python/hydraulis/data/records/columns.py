"""From columns of Arrow to the values of records."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from hydraulis.data.extras import extra_module


def rows(batch: Any, fields: Sequence[str]) -> Iterator[Sequence[object]]:
    """Give the wanted fields of each row of a record batch; lists of integers as arrays, not copied."""
    return zip(*(_values(batch.column(batch.schema.get_field_index(name))) for name in fields), strict=True)


def _values(column: Any) -> Sequence[object]:
    pyarrow: Any = extra_module("pyarrow", "reading columns")
    kind = column.type
    is_list = pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind)
    plain = is_list and pyarrow.types.is_integer(kind.value_type) and not column.null_count
    # Nulls among the integers would make them floats.
    if plain and not column.values.null_count:
        values, offsets = column.values.to_numpy(), column.offsets.to_numpy()
        return [values[start:stop] for start, stop in pairwise(offsets)]
    result: list[object] = column.to_pylist()
    return result
