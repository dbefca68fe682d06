"""Callbacks by which long work reports its progress."""

from collections.abc import Callable
from typing import TypeAlias

ProgressCallback: TypeAlias = Callable[[str, int, int], object]
"""Called with the current task, its finished units and its total units; both are 0 if unknown."""

ShareCallback: TypeAlias = Callable[[float], object]
"""Called with the finished share of the work, from 0 to 1."""


def ignore_progress(_task: str, _done: int, _total: int) -> None:
    """Discard a report: the callback of work without an audience."""


def ignore_share(_share: float) -> None:
    """Discard a report, as `ignore_progress` does."""
