"""What tests of several packages share."""

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

ROOT = Path(__file__).parents[1]


def at_least(n: int, items: Iterable[T]) -> list[T]:
    """Return `items` as a list of at least `n`: a scan that sees nothing must fail, not pass.

    Every test that looks through files or names counts them first with this.
    """
    found = list(items)
    assert len(found) >= n, f"found {len(found)} of at least {n}: {found}"
    return found
