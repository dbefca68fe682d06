"""The known name that is closest to an unknown one."""

import difflib
from collections.abc import Iterable

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
