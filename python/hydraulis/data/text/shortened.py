"""Values of records as messages write them."""

import json

import numpy as np

_MOST = 60


def shortened(value: object) -> str:
    """Write a value as JSON does, or its beginning where it is long.

    >>> shortened({"a": [None, True]}), shortened("b" * 99)[-5:]
    ('{"a": [null, true]}', 'bb...')
    """
    text = json.dumps(value, ensure_ascii=False, default=_plain)
    # What a terminal would not show, or obey: JSON alone escapes a part of it.
    shown = "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text[: _MOST + 1])
    return shown if len(shown) <= _MOST else f"{shown[:_MOST]}..."


def _plain(value: object) -> object:
    """Turn what columns hold beside the values of JSON into one of these, and say what it is."""
    return value.tolist() if isinstance(value, np.ndarray) else f"{type(value).__name__} {value}"
