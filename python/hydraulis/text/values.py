"""Values in messages: written as TOML or JSON has them, and shortened where they are long."""

import json
from collections.abc import Mapping
from datetime import date, time

import numpy as np


def as_toml(value: object) -> str:
    """Write a value as TOML or JSON has it, strings in single quotes as everywhere in messages.

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


_MOST = 60


def as_short_json(value: object) -> str:
    """Write a value as JSON does, or its beginning where it is long.

    >>> as_short_json({"a": [None, True]}), as_short_json("b" * 99)[-5:]
    ('{"a": [null, true]}', 'bb...')
    """
    text = json.dumps(value, ensure_ascii=False, default=_plain)
    # What a terminal would not show, or obey: JSON alone escapes a part of it.
    shown = "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text[: _MOST + 1])
    return shown if len(shown) <= _MOST else f"{shown[:_MOST]}..."


def _plain(value: object) -> object:
    """Turn what columns hold beside the values of JSON into one of these, and say what it is."""
    return value.tolist() if isinstance(value, np.ndarray) else f"{type(value).__name__} {value}"
