"""Checks of single configuration values; each message has the field, its value and the limit."""

import math

from hydraulis.errors import InvalidInputError
from hydraulis.text.values import as_toml


def check_at_least(field: str, value: float, limit: float) -> None:
    """Refuse a value below the limit, infinities and NaN.

    Args:
        field: Dotted name of the key, such as `train.steps`.
        value: Value of the key; an int for an integer key.
        limit: The smallest allowed value.

    Raises:
        InvalidInputError: The value is refused (code `config_value`).
    """
    if not limit <= value < math.inf:
        kind = "a whole number" if isinstance(value, int) else "a finite number"
        raise _refusal(field, value, f"{kind} of at least {limit:.15g}")


def check_at_most(field: str, value: int, limit: int, why: str) -> None:
    """Refuse a value above the limit, which `why` derives from another key; see `check_at_least`."""
    if value > limit:
        raise _refusal(field, value, f"a whole number of at most {limit}, which is {why}")


def check_above(field: str, value: float, limit: float, below: float = math.inf) -> None:
    """Refuse numbers up to the limit, `below` and larger numbers, and NaN; see `check_at_least`."""
    if not limit < value < below:
        kind = "a finite number" if below == math.inf else "a number"
        end = "" if below == math.inf else f" and below {below:,.15g}"
        raise _refusal(field, value, f"{kind} above {limit:g}{end}")


def check_within(field: str, value: float, least: float, limit: float) -> None:
    """Refuse everything below `least`, the limit and everything above it, and NaN; see `check_at_least`."""
    if not least <= value < limit:
        raise _refusal(field, value, f"a number of at least {least:g} and below {limit:g}")


def check_not_empty(field: str, value: str | tuple[str, ...], such_as: str = "") -> None:
    """Refuse an empty array, an empty string and a string of spaces; see `check_at_least`.

    Args:
        field: Dotted name of the key.
        value: Value of the key.
        such_as: Examples of a valid value, for the message.
    """
    if not (value.strip() if isinstance(value, str) else value):
        examples = f", such as {such_as}" if such_as else ""
        raise _refusal(field, value, f"non-empty{examples}")


def _refusal(field: str, value: object, wanted: str) -> InvalidInputError:
    message = f"{field} = {as_toml(value)} must be {wanted}; change it in the file or by an override"
    return InvalidInputError(message, code="config_value")
