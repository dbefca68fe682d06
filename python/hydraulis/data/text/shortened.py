"""Values of records as messages write them."""

_MOST = 60


def shortened(value: object) -> str:
    """Write a value, or its beginning where it is long.

    >>> shortened(["a"]), shortened("b" * 99)[-5:]
    ("['a']", 'bb...')
    """
    written = repr(value)
    return written if len(written) <= _MOST else f"{written[:_MOST]}..."
