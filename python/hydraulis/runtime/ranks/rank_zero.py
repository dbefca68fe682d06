"""Broadcasts rank 0's results to every rank: as the same bytes, or as the same error."""

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis import errors
from hydraulis.data.corpus import Corpus
from hydraulis.runtime.ranks.every_rank import everywhere

# Seconds between two heartbeats: far below any timeout of a process group.
_HEARTBEAT_S = 2.0
# A sign of life in place of the length of a text.
_ALIVE = -1


def from_rank_zero(make: Callable[[], str]) -> str:
    """Call `make` on rank 0 only, and return its text on every rank. Collective.

    Raises:
        HydraulisError: The error of `make`, on every rank, so that no rank waits for a text. An exception of
            another type is raised on rank 0, and on the other ranks as code `rank_zero_failed`.
    """
    return from_living_rank_zero(lambda _alive: make())


def from_living_rank_zero(make: Callable[[Callable[[], None]], str]) -> str:
    """Call `make` on rank 0 only, even if it takes longer than the timeout of a collective. Collective.

    Without a heartbeat the call costs the same broadcasts as `from_rank_zero`. It cannot be stopped.

    Args:
        make: Function that returns the text. It receives a heartbeat function and calls it more often than
            the timeout of a collective.

    Raises:
        HydraulisError: The errors of `from_rank_zero`.
    """
    reply: dict[str, str]
    reply, failure = _reply(partial(make, _Beat())) if dist.get_rank() == 0 else ({}, None)
    sent = torch.tensor(bytearray(json.dumps(reply).encode()), dtype=torch.uint8)
    length = torch.tensor(sent.numel())
    dist.broadcast(length, src=0)
    while int(length) == _ALIVE:
        dist.broadcast(length, src=0)
    received = sent if dist.get_rank() == 0 else torch.empty(int(length), dtype=torch.uint8)
    dist.broadcast(received, src=0)
    if failure is not None:
        raise everywhere(failure) if isinstance(failure, errors.HydraulisError) else failure
    reply = json.loads(received.numpy().tobytes())
    if "failed" in reply:
        message = f"rank 0 failed: {reply['failed']}; see its traceback"
        raise errors.HydraulisError(message, code="rank_zero_failed")
    if "error" in reply:
        raise everywhere(getattr(errors, reply["error"])(reply["message"], code=reply["code"]))
    return reply["text"]


class _Beat:
    """Sends a sign of life in place of the length of a text, unless the last one is recent."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self) -> None:
        if time.monotonic() - self._last >= _HEARTBEAT_S:
            self._last = time.monotonic()
            dist.broadcast(torch.tensor(_ALIVE), src=0)


def from_rank_zero_slowly(make: Callable[[Callable[[], None]], str], stop: Callable[[], bool]) -> str | None:
    """Call `make` on rank 0 only, even if it takes longer than the timeout of a collective. Collective.

    Args:
        make: Function that returns the text. It receives a heartbeat function and calls it regularly; the
            heartbeat leaves `make` by an exception if the run must stop.
        stop: Function that returns whether the run must stop, the same on all ranks. Collective.

    Returns:
        The text, on every rank; None if the run must stop.

    Raises:
        HydraulisError: The errors of `from_rank_zero`.
    """
    if dist.get_rank() == 0:
        return _make_slowly(make, stop)
    while _flag(None):
        if stop():
            return None
    return from_rank_zero(str)


def _make_slowly(make: Callable[[Callable[[], None]], str], stop: Callable[[], bool]) -> str | None:
    last = time.monotonic()

    def alive() -> None:
        nonlocal last
        if time.monotonic() - last > _HEARTBEAT_S:
            last = time.monotonic()
            _flag(1)
            if stop():
                raise _StopMaking

    try:
        reply: Callable[[], str] = partial(str, make(alive))
    except _StopMaking:
        return None
    except Exception as error:
        reply = partial(_raise, error)
    _flag(0)
    return from_rank_zero(reply)


class _StopMaking(Exception):  # noqa: N818 - no error
    """Leaves `make` because the run must stop."""


def _flag(value: int | None) -> bool:
    """Broadcast rank 0's value and return whether it is nonzero. Collective."""
    flag = torch.tensor(value or 0)
    dist.broadcast(flag, src=0)
    return bool(flag)


def _raise(error: Exception) -> str:
    raise error


def on_rank_zero(act: Callable[[], None]) -> None:
    """Call `act` on rank 0 only; its error is raised on every rank as in `from_rank_zero`. Collective."""

    def make() -> str:
        act()
        return ""

    from_rank_zero(make)


def on_living_rank_zero(act: Callable[[Callable[[], None]], None]) -> None:
    """Call `act` on rank 0 only, with a heartbeat function, as `from_living_rank_zero` does. Collective."""

    def make(alive: Callable[[], None]) -> str:
        act(alive)
        return ""

    from_living_rank_zero(make)


def corpus_from_rank_zero(load: Callable[[Callable[[], None]], Corpus]) -> Corpus:
    """Load a corpus without a mask on rank 0, and broadcast it to every rank. Collective.

    Args:
        load: Function that loads the corpus, and calls the heartbeat function that it receives.

    Raises:
        HydraulisError: The error of `load`, on every rank.
    """
    loaded: list[Corpus] = []

    def facts(alive: Callable[[], None]) -> str:
        corpus = load(alive)
        loaded.append(corpus)
        return json.dumps(
            [corpus.token_T.dtype.name, len(corpus.token_T), len(corpus.offset), dict(corpus.left_out)]
        )

    dtype, num_tokens, num_offsets, left_out = json.loads(from_living_rank_zero(facts))
    token_T = _shared(loaded[0].token_T if loaded else None, num_tokens, getattr(torch, dtype))
    offset = _shared(loaded[0].offset if loaded else None, num_offsets, torch.int64)
    return Corpus(token_T=token_T.numpy(), offset=offset.numpy(), left_out=left_out)


def _reply(make: Callable[[], str]) -> tuple[dict[str, str], Exception | None]:
    try:
        return {"text": make()}, None
    except errors.HydraulisError as error:
        return {"error": type(error).__name__, "message": str(error), "code": error.code}, error
    except Exception as error:
        return {"failed": repr(error)}, error


def _shared(array: npt.NDArray[Any] | None, elements: int, dtype: torch.dtype) -> Tensor:
    # The array is copied, because torch accepts no read-only array.
    shared = torch.empty(elements, dtype=dtype) if array is None else torch.tensor(array)
    dist.broadcast(shared, src=0)
    return shared
