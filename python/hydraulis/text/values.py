"""Values in messages, formatted as TOML or JSON."""

import json
from collections.abc import Mapping
from datetime import date, time

import numpy as np


def as_toml(value: object) -> str:
    """Format a value as TOML, with single quotes around strings as in all messages; None becomes null.

    >>> as_toml(True), as_toml(None), as_toml("a"), as_toml(0.5), as_toml({"a": [1, False]})
    ('true', 'null', "'a'", '0.5', '{ a = [1, false] }')
    """
    match value:
        case bool():
            return str(value).lower()
        case None:
            return "null"
        case Mapping():
            return f"{{ {', '.join(f'{key} = {as_toml(one)}' for key, one in value.items())} }}"
        case list() | tuple():
            return f"[{', '.join(map(as_toml, value))}]"
        case date() | time():
            return value.isoformat()
        case _:
            return repr(value)


_MAX_CHARACTERS = 60


def as_short_json(value: object) -> str:
    """Format a value as JSON, cut after 60 characters.

    >>> as_short_json({"a": [None, True]}), as_short_json("b" * 99)[-5:]
    ('{"a": [null, true]}', 'bb...')
    """
    text = json.dumps(value, ensure_ascii=False, default=_as_json_value)
    # JSON escapes only some of the characters that a terminal would hide or interpret.
    shown = "".join(
        one if one.isprintable() else json.dumps(one)[1:-1] for one in text[: _MAX_CHARACTERS + 1]
    )
    return shown if len(shown) <= _MAX_CHARACTERS else f"{shown[:_MAX_CHARACTERS]}..."


def _as_json_value(value: object) -> object:
    """Convert a column's value that JSON lacks: an array to a list, others to their type and text."""
    return value.tolist() if isinstance(value, np.ndarray) else f"{type(value).__name__} {value}"
