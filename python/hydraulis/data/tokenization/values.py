"""The values of a record's fields: texts and lists of integers, and the refusal of other values."""

import numpy as np

from hydraulis.data.tokens import Tokens
from hydraulis.errors import InvalidInputError
from hydraulis.text.values import as_short_json


def text_value(field: str, value: object) -> str:
    """Return a value that is a text.

    Raises:
        InvalidInputError: It is none (code `record_malformed`).
    """
    if isinstance(value, bytes):
        message = f"field '{field}' has bytes instead of a string; convert the column to strings"
        raise InvalidInputError(message, code="record_malformed")
    if not isinstance(value, str):
        raise refuse_value(field, value, "a string")
    return value


def integers_value(field: str, value: object, noun: str) -> Tokens:
    """Return a value that is a list of integers, as an array [n].

    Args:
        field: Name of the field, for messages.
        value: Value of the field.
        noun: Word for one of the integers.

    Raises:
        InvalidInputError: It is none (code `record_malformed`).
    """
    try:
        array = np.asarray(value) if isinstance(value, list | np.ndarray) else None
    except ValueError:
        # Lists of several lengths.
        array = None
    if array is not None and array.size == 0:
        return np.zeros(0, dtype=np.int64)
    if array is None or array.ndim != 1 or array.dtype.kind not in "iu":
        raise refuse_value(field, value, f"a list of integers, one for each {noun}")
    return array


def mask_value(field: str, value: object) -> Tokens:
    """Return a value that is a list of 0 and 1 or of booleans, as an array [n] of 0 and 1.

    Raises:
        InvalidInputError: It is none (code `record_malformed`).
    """
    if isinstance(value, list) and all(isinstance(flag, bool) for flag in value):
        return np.array(value, dtype=np.int64)
    array = integers_value(field, value, "token")
    if len(array) and not 0 <= array.min() <= array.max() <= 1:
        raise refuse_value(field, value, "a mask of 0 and 1, one for each token")
    return array


def refuse_value(field: str, value: object, wanted: str) -> InvalidInputError:
    """Make the error for a value of another type (code `record_malformed`)."""
    message = (
        f"field '{field}' has {as_short_json(value)} instead of {wanted}; correct the record, or leave it out"
    )
    return InvalidInputError(message, code="record_malformed")
