"""What a command tells of its progress."""

from typing import NamedTuple

import pytest

from hydraulis.cli.terminal.progress import Progress


class Told(NamedTuple):
    """One word of it: what is done, how much, and of how much."""

    name: str
    done: int
    of: int


def listen(monkeypatch: pytest.MonkeyPatch) -> list[Told]:
    """Collect all that commands tell from now on."""
    told: list[Told] = []

    def take(_: Progress, name: str, done: int, of: int, *, is_share: bool) -> None:
        assert is_share or done <= of or not of
        told.append(Told(name, done, of))

    monkeypatch.setattr(Progress, "_set", take)
    return told


def interrupt_at(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let Ctrl-C come when a step of this name is told for the first time."""

    def take(_: Progress, told: str, *_of: int, is_share: bool) -> None:
        del is_share
        if told == name:
            raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "_set", take)
