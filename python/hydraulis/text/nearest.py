"""The known name that was meant by one that is not known."""

import difflib
from collections.abc import Iterable

# As difflib has it: below that two names have little in common.
_NEAR = 0.6


def nearest_name(word: str, known: Iterable[str], least: float = _NEAR) -> str | None:
    """Give the known name that is most like a word, whatever its case; None if none is.

    Args:
        word: that is none of them.
        known: names.
        least: how like it must be, from 0 to 1.

    >>> nearest_name("Laptp", ("laptop", "node")), nearest_name("gpu", ("laptop", "node"))
    ('laptop', None)
    """
    names = {name.casefold(): name for name in known}
    found = difflib.get_close_matches(word.casefold(), names, n=1, cutoff=least)
    return names[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Ask, as the end of a message, whether the nearest name was meant; nothing if none is near."""
    near = nearest_name(word, known)
    return "" if near is None else f"; did you mean '{near}'?"
