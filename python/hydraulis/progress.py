"""How work that takes a while tells what it is doing."""

from collections.abc import Callable
from typing import TypeAlias

# What is being done, how much of it is, and of how much in all; 0 of 0 where that is not known.
ProgressCallback: TypeAlias = Callable[[str, int, int], object]


def ignore_progress(_name: str, _done: int, _of: int) -> None:
    """Tell nobody."""
