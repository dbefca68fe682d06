"""Rows of pyarrow's record batches, and the errors of damaged files of columns."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from hydraulis.errors import HydraulisError, InvalidInputError
from hydraulis.extras import import_extra


@contextmanager
def reading_columns(path: Path, kind: str) -> Iterator[None]:
    """Convert the errors that pyarrow raises for a damaged file.

    Args:
        path: Path of the file, which exists and can be opened.
        kind: Name of the format.

    Raises:
        InvalidInputError: The content is damaged (code `data_file_invalid`).
    """
    pyarrow: Any = import_extra("pyarrow", f"the {kind} file '{path}'")
    try:
        yield
    except HydraulisError:
        raise
    # The text of a damaged column is no UTF-8, and damaged sizes ask for any amount of memory.
    except (pyarrow.ArrowException, OSError, MemoryError, OverflowError, ValueError) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        message = f"file '{path}' is no {kind} file, or is damaged ({error}); write it again"
        raise InvalidInputError(message, code="data_file_invalid") from error


def iterate_rows(batch: Any, fields: Sequence[str]) -> Iterator[Sequence[object]]:
    """Yield the values of the fields for each row of a record batch; lists of integers are array views.

    The values of an absent column are None. In a column every struct has the fields of all structs, so those
    that are null are left out; the `content` of a message stays.
    """
    # Offsets of a damaged batch may point beyond its data.
    batch.validate(full=True)
    return zip(*(_values(batch, name) for name in fields), strict=True)


def _values(batch: Any, name: str) -> Sequence[object]:
    index = batch.schema.get_field_index(name)
    if index < 0:
        return [None] * batch.num_rows
    column = batch.column(index)
    pyarrow: Any = import_extra("pyarrow", "reading columns")
    kind = column.type
    is_list = pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind)
    plain = is_list and pyarrow.types.is_integer(kind.value_type) and not column.null_count
    # Nulls among the integers would make them floats.
    if plain and not column.values.null_count:
        values, offsets = column.values.to_numpy(), column.offsets.to_numpy()
        return [values[start:stop] for start, stop in pairwise(offsets)]
    result: list[object] = column.to_pylist()
    return [_without_nulls(value) for value in result] if pyarrow.types.is_nested(kind) else result


def _without_nulls(value: object) -> object:
    """Leave out the null fields of the structs in a value; the null items of lists stay."""
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    if not isinstance(value, dict):
        return value
    # Templates tell a message whose content is null from one that has none.
    kept = ("content",) if value.get("role") is not None else ()
    return {name: _without_nulls(part) for name, part in value.items() if part is not None or name in kept}
