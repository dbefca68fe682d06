"""Numbers, values and names in messages: counts, percentages, memory, ranks, TOML and JSON, close names."""

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, time

import numpy as np


def format_count(number: int, singular: str, plural: str | None = None) -> str:
    """Format a number with the noun that it counts.

    Args:
        number: The number.
        singular: The noun for 1.
        plural: The noun for other numbers; by default `singular` with an s.

    >>> format_count(1, "file"), format_count(2_000, "file"), format_count(0, "strategy", "strategies")
    ('1 file', '2,000 files', '0 strategies')
    """
    return f"{number:,} {singular if number == 1 else plural or f'{singular}s'}"


MIB = 1 << 20
"""Bytes of a MiB, the unit of memory in configurations and messages."""


def mib(nbytes: float) -> str:
    """Format bytes as a number of MiB, rounded.

    >>> mib(1_500 * MIB + 1)
    '1,500'
    """
    return f"{nbytes / MIB:,.0f}"


def free_mib(nbytes: int) -> str:
    """Format free bytes as MiB, rounded down: with `needed_mib` a message never shows enough room.

    >>> free_mib(2 * MIB - 1), needed_mib(MIB + 1)
    ('1', '2')
    """
    return f"{nbytes // MIB:,}"


def needed_mib(nbytes: int) -> str:
    """Format needed bytes as MiB, rounded up."""
    return f"{-(-nbytes // MIB):,}"


def name_ranks(ranks: Sequence[int]) -> str:
    """Name ranks by their numbers.

    >>> name_ranks([3]), name_ranks([4, 5])
    ('rank 3', 'ranks 4, 5')
    """
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"


def format_percent(share: float, decimals: int = 1) -> str:
    """Format a share as a percentage; a negative number that rounds to zero has no minus sign.

    >>> format_percent(0.0314), format_percent(-1e-15), format_percent(-4e-5, 2)
    ('3.1 %', '0.0 %', '0.00 %')
    """
    return f"{100 * share:z.{decimals}f} %"


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


# difflib's default cutoff for close matches.
_CUTOFF = 0.6


def nearest_name(word: str, known: Iterable[str], cutoff: float = _CUTOFF) -> str | None:
    """Find the known name that is most similar to a word, ignoring case; None without a close one.

    Args:
        word: The unknown name.
        known: The known names.
        cutoff: The least similarity of a match, from 0 to 1.

    >>> nearest_name("Laptp", ("laptop", "node")), nearest_name("gpu", ("laptop", "node"))
    ('laptop', None)
    """
    names = {name.casefold(): name for name in known}
    found = difflib.get_close_matches(word.casefold(), names, n=1, cutoff=cutoff)
    return names[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of a message that suggests the nearest name; an empty string without a close one."""
    near = nearest_name(word, known)
    return "" if near is None else f"; did you mean '{near}'?"


def escape_unprintable(text: str) -> str:
    r"""Escape control characters, which a terminal would follow, and halves of surrogates.

    >>> print(escape_unprintable(chr(27) + chr(0xD800)))
    \x1b\ud800
    """
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
