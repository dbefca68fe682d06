"""Values in messages, formatted as TOML or JSON."""

import json
from collections.abc import Mapping
from datetime import date, time

import numpy as np

_MOST_CHARACTERS, _MOST_LEVELS, _MOST_BITS = 500, 8, 8192


def as_toml(value: object) -> str:
    """Format a value as TOML, with single quotes around strings as in all messages; None becomes null.

    A long or deeply nested value is cut.

    >>> as_toml(True), as_toml(None), as_toml("a"), as_toml(0.5), as_toml({"a": [1, False]})
    ('true', 'null', "'a'", '0.5', '{ a = [1, false] }')
    """
    text = _as_toml(value, _MOST_LEVELS)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."


def _as_toml(value: object, levels: int) -> str:
    match value:
        case bool():
            return str(value).lower()
        case None:
            return "null"
        case Mapping() | list() | tuple() if not levels:
            return "..."
        case Mapping():
            return f"{{ {', '.join(f'{key} = {_as_toml(one, levels - 1)}' for key, one in value.items())} }}"
        case list() | tuple():
            return f"[{', '.join(_as_toml(one, levels - 1) for one in value)}]"
        case date() | time():
            return value.isoformat()
        case int() if value.bit_length() > _MOST_BITS:
            # Python converts no number of thousands of digits.
            return f"a number of {value.bit_length():,} bits"
        case _:
            return repr(value)


def is_text(value: str) -> bool:
    r"""Whether a string can be written in UTF-8, which halves of surrogate pairs cannot.

    Python reads other bytes of a command line or a path as such halves.

    >>> is_text("a"), is_text("a\udcff")
    (True, False)
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


_MAX_CHARACTERS = 60


def as_short_json(value: object) -> str:
    """Format a value as JSON, cut after 60 characters.

    >>> as_short_json({"a": [None, True]}), as_short_json("b" * 99)[-5:]
    ('{"a": [null, true]}', 'bb...')
    """
    try:
        text = json.dumps(value, ensure_ascii=False, default=_as_json_value)
    except (RecursionError, ValueError):
        # Nested more deeply than can be written, or a number of thousands of digits.
        return f"a {type(value).__name__}"
    # JSON escapes only some of the characters that a terminal would hide or interpret.
    shown = "".join(
        one if one.isprintable() else json.dumps(one)[1:-1] for one in text[: _MAX_CHARACTERS + 1]
    )
    return shown if len(shown) <= _MAX_CHARACTERS else f"{shown[:_MAX_CHARACTERS]}..."


def _as_json_value(value: object) -> object:
    """Convert a column's value that JSON lacks: an array to a list, others to their type and text."""
    return value.tolist() if isinstance(value, np.ndarray) else f"{type(value).__name__} {value}"
