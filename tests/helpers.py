"""Helpers that tests of several packages share."""

import builtins
import errno
import io
import os
import resource
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from hydraulis.errors import HydraulisError

T = TypeVar("T")

ROOT = Path(__file__).parents[1]
# `make soak` draws more cases than `make test`.
IS_SOAK = "HYDRAULIS_SOAK" in os.environ


def at_least(n: int, items: Iterable[T]) -> list[T]:
    """Return `items` as a list of at least `n`: a scan that sees nothing must fail, not pass.

    Every test that looks through files or names counts them first with this.
    """
    found = list(items)
    assert len(found) >= n, f"found {len(found)} of at least {n}: {found}"
    return found


@contextmanager
def refused(
    code: str, *parts: object, kind: type[HydraulisError] = HydraulisError
) -> Iterator[pytest.ExceptionInfo[HydraulisError]]:
    """Expect an error with this code, whose message has each of these names and numbers."""
    with pytest.raises(kind) as caught:
        yield caught
    assert caught.value.code == code, caught.value
    message = str(caught.value)
    assert lacks(message, *parts) == [], message


def lacks(text: str, *parts: object) -> list[object]:
    """Return the names and numbers that a text does not have; its wording may change."""
    return [part for part in parts if str(part) not in text]


def synced(monkeypatch: pytest.MonkeyPatch, path: Path) -> list[tuple[str, bool]]:
    """Record what the disk is waited for from now on: a name, and whether `path` is there by then."""
    found: list[tuple[str, bool]] = []
    sync = os.fsync

    def recorded(descriptor: int) -> None:
        found.append((Path(f"/proc/self/fd/{descriptor}").readlink().name, path.exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    return found


@contextmanager
def unopened(path: Path, number: int = errno.EACCES) -> Iterator[None]:
    """Refuse to open a file, even for root, to whom permissions do not apply."""
    opened = io.open

    def refuse(name: Any, *arguments: Any, **options: Any) -> Any:
        if not isinstance(name, int) and Path(os.fspath(name)) == path:
            raise OSError(number, os.strerror(number), str(path))
        return opened(name, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(io, "open", refuse)
        patch.setattr(builtins, "open", refuse)
        yield


@contextmanager
def unsearched(folder: Path) -> Iterator[None]:
    """Refuse to list a folder and to search it for a name, even for root."""

    def refusing(method: str) -> Any:
        system = getattr(Path, method)

        def refuse(path: Path, *arguments: Any, **options: Any) -> Any:
            if folder in path.parents or (method == "iterdir" and path == folder):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return system(path, *arguments, **options)

        return refuse

    with pytest.MonkeyPatch.context() as patch:
        for method in ("stat", "lstat", "iterdir", "open"):
            patch.setattr(Path, method, refusing(method))
        yield


@contextmanager
def file_sizes_below(limit: int) -> Iterator[None]:
    """Let a write beyond so many bytes of a file fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
