"""Broadcasts rank 0's results to every rank: as the same value, or as the same error.

A reply is one broadcast of a fixed size, with its length in front; only a longer one needs a second.
"""

import json
import time
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis import errors
from hydraulis.data.corpus import Corpus
from hydraulis.runtime.ranks import host
from hydraulis.runtime.ranks.every_rank import everywhere

Json = TypeVar("Json")

# Seconds between two heartbeats: far below any timeout of a process group.
_HEARTBEAT_S = 2.0
# Bytes of the first broadcast of a reply, after its length and kind; a plan of 1,000 sequences has 29 KB.
_FIRST_BYTES = 1 << 15
_HEADER_BYTES = 9
# Error of rank 0 that no reply has raised yet.
_deferred: list[Exception] = []


def from_rank_zero(make: Callable[[], Json]) -> Json:
    """Call `make` on rank 0 only, and return its value on every rank. Collective.

    Args:
        make: Function that returns a value of JSON: text, numbers, truth values, None, lists, and mappings
            with texts as keys. Tuples arrive as lists, on rank 0 too.

    Raises:
        HydraulisError: The error of `make`, on every rank, so that no rank waits for a value. An exception of
            another type is raised on rank 0, and on the other ranks as code `rank_zero_failed`.
    """
    value: Json = json.loads(from_living_rank_zero(lambda _alive: json.dumps(make())))
    return value


def from_living_rank_zero(make: Callable[[Callable[[], None]], str]) -> str:
    """Call `make` on rank 0 only, even if it takes longer than the timeout of a collective. Collective.

    Without a heartbeat the call costs the same broadcasts as `from_rank_zero`. It cannot be stopped.

    Args:
        make: Function that returns a text. It receives a heartbeat function and calls it more often than the
            timeout of a collective.

    Raises:
        HydraulisError: The errors of `from_rank_zero`.
    """
    text = from_rank_zero_unless_stopped(make, lambda: False)
    assert text is not None
    return text


def from_rank_zero_unless_stopped(
    make: Callable[[Callable[[], None]], str], stops: Callable[[], bool]
) -> str | None:
    """Do the same as `from_living_rank_zero`, but end when the run must stop. Collective.

    Args:
        make: Function that returns a text. The heartbeat function that it receives leaves it by an exception
            if the run must stop.
        stops: Function that returns whether the run must stop, the same on all ranks; called after each
            heartbeat that is sent. Collective.

    Returns:
        The text, on every rank; None if the run must stop.

    Raises:
        HydraulisError: The errors of `from_rank_zero`.
    """
    is_maker = dist.get_rank() == 0
    try:
        sent, failure = _reply(partial(make, _Heartbeat(stops))) if is_maker else (None, None)
    except _StopMaking:
        return None
    received = _broadcast_reply(sent)
    while received.kind == _Kind.ALIVE:
        if stops():
            return None
        received = _broadcast_reply(None)
    if failure is not None:
        raise everywhere(failure) if isinstance(failure, errors.HydraulisError) else failure
    if received.kind == _Kind.FAILED:
        message = f"rank 0 failed: {received.text}; see its traceback"
        raise errors.HydraulisError(message, code="rank_zero_failed")
    if received.kind == _Kind.ERROR:
        error = json.loads(received.text)
        raise everywhere(getattr(errors, error["error"])(error["message"], code=error["code"]))
    return received.text


class _Kind(IntEnum):
    TEXT = 0
    ERROR = 1
    FAILED = 2
    # A sign of life, before the reply.
    ALIVE = 3


class _Reply(NamedTuple):
    kind: _Kind
    text: str


def _broadcast_reply(reply: _Reply | None) -> _Reply:
    """Broadcast rank 0's reply; None on the other ranks. Collective."""
    text = b"" if reply is None else reply.text.encode(errors="surrogatepass")
    first = bytearray(_FIRST_BYTES)
    if reply is not None:
        header = len(text).to_bytes(_HEADER_BYTES - 1, "little") + bytes([reply.kind])
        start = header + text[: _FIRST_BYTES - _HEADER_BYTES]
        first[: len(start)] = start
    # The tensors share the memory of the bytes: a tensor of single bytes takes 12 ms for 100 KB.
    host.broadcast(torch.frombuffer(first, dtype=torch.uint8))
    length = int.from_bytes(first[: _HEADER_BYTES - 1], "little")
    rest = bytearray(max(0, length - (_FIRST_BYTES - _HEADER_BYTES)))
    if rest:
        rest[:] = text[-len(rest) :] or rest
        host.broadcast(torch.frombuffer(rest, dtype=torch.uint8))
    received = first[_HEADER_BYTES : _HEADER_BYTES + length] + rest
    return reply or _Reply(_Kind(first[_HEADER_BYTES - 1]), received.decode(errors="surrogatepass"))


class _Heartbeat:
    """Sends a sign of life in place of a reply, unless the last one is recent; raises at a stop."""

    def __init__(self, stops: Callable[[], bool]) -> None:
        self._stops = stops
        self._last = time.monotonic()

    def __call__(self) -> None:
        if time.monotonic() - self._last >= _HEARTBEAT_S:
            self._last = time.monotonic()
            _broadcast_reply(_Reply(_Kind.ALIVE, ""))
            if self._stops():
                raise _StopMaking


class _StopMaking(BaseException):
    """Leaves `make` because the run must stop; no `except Exception` on the way may keep it."""


def on_rank_zero(act: Callable[[], object]) -> None:
    """Call `act` on rank 0 only; its error is raised on every rank as in `from_rank_zero`. Collective."""

    def make() -> None:
        act()

    from_rank_zero(make)


def on_rank_zero_alone(act: Callable[[], None]) -> None:
    """Call `act` on rank 0 only, without a collective.

    The next reply of rank 0 to all ranks raises the error of `act` there (see `raise_deferred`).
    """
    if dist.get_rank() == 0:
        try:
            act()
        except Exception as error:
            _deferred.append(error)


def raise_deferred() -> None:
    """Raise the error of an earlier `on_rank_zero_alone`, if any, on every rank. Collective."""
    from_rank_zero(lambda: None)


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


def _raise(error: Exception) -> str:
    raise error


def _reply(make: Callable[[], str]) -> tuple[_Reply, Exception | None]:
    try:
        return _Reply(_Kind.TEXT, _raise(_deferred.pop()) if _deferred else make()), None
    except errors.HydraulisError as error:
        facts = {"error": type(error).__name__, "message": str(error), "code": error.code}
        return _Reply(_Kind.ERROR, json.dumps(facts)), error
    except Exception as error:
        return _Reply(_Kind.FAILED, repr(error)), error


def _shared(array: npt.NDArray[Any] | None, elements: int, dtype: torch.dtype) -> Tensor:
    # The array is copied, because torch accepts no read-only array.
    shared = torch.empty(elements, dtype=dtype) if array is None else torch.tensor(array)
    host.broadcast(shared)
    return shared
