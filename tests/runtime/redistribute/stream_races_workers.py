"""Workers of test_stream_races.py: steps on gloo, told to torch's sanitizer of CUDA streams as if on devices.

Each rank really computes and communicates on its CPU, one thing after another. The sanitizer gets the streams
that the work would have on a device, the events between them, and the memory that each operation reads and
writes. It reports two accesses of one element without an event between them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hydraulis.runtime.redistribute import exchange_groups
from hydraulis.runtime.redistribute.exchange_groups import ExchangeGroup
from hydraulis.runtime.redistribute.gradient_reduction import GradientReduction
from hydraulis.runtime.redistribute.parameter_gather import ParameterGather
from hydraulis.runtime.step import train_step
from runtime.tiny import make_worker, plan_for
from small_model import small_config

COMPUTATION, SIDE, MESSAGES, INSIDE, BETWEEN = range(5)
NAMES = ("computation", "side", "messages", "inside", "between")


class Streams(TorchDispatchMode):
    """The streams of one rank.

    Attributes:
        races: Operation and streams of each pair of accesses without order.
        current: Stream in which operations are issued.

    Args:
        left_out: Wait that is left out: of a stream for another, or for an exchange; none if empty.
    """

    def __init__(self, left_out: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.races: set[tuple[str, str, str]] = set()
        self.current = COMPUTATION
        self._left_out = left_out
        # On a device the import changes torch for the whole process: see `ranks`.
        from torch.cuda._sanitizer import EventHandler

        self._handler = EventHandler()
        self._events = count()
        self._is_paused = False
        # Else memory would be used again, which on a device happens in the stream of its first use alone.
        self._alive: list[Any] = []
        self._flat: set[int] = set()

    def distinguish(self, buffers: Iterable[Tensor]) -> None:
        """Look at single elements of these buffers, and at other tensors as wholes."""
        self._flat.update(buffer.untyped_storage().data_ptr() for buffer in buffers)

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._is_paused = True
        yield
        self._is_paused = False

    def record(self, stream: int | None = None) -> int:
        """Record an event in a stream, the current one if left out; return it."""
        event = next(self._events)
        self._handler._handle_event_creation(event)
        self._handler._handle_event_record(event, self.current if stream is None else stream)
        return event

    def wait(self, event: int, why: str, stream: int | None = None) -> None:
        """Let a stream wait for an event, unless that is to be left out."""
        if why != self._left_out:
            self._handler._handle_event_wait(event, self.current if stream is None else stream)

    def access(self, stream: int, name: str, reads: Iterable[Tensor], writes: Iterable[Tensor]) -> None:
        """Let work in a stream read and write tensors."""
        written = {place for tensor in writes for place in self._places(tensor)}
        read = {place for tensor in reads for place in self._places(tensor)} - written
        aliases: dict[int, list[str]] = {place: [] for place in read | written}
        for error in self._handler._handle_kernel_launch(stream, read, written, set(), name, aliases):
            now, before = error.current_access, error.previous_access  # type: ignore[attr-defined]
            self.races.add((now.operator, NAMES[now.stream], NAMES[before.stream]))

    def _places(self, tensor: Tensor) -> Iterable[int]:
        storage = tensor.untyped_storage().data_ptr()
        if storage not in self._flat or tensor.numel() == 0:
            return (storage,) if tensor.numel() else ()
        size = tensor.element_size()
        extent = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        # A buffer's first element would have the place of the whole.
        return range(tensor.data_ptr() + 1, tensor.data_ptr() + 1 + extent * size, 8)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self._alive.append(result)
        if not self._is_paused and func.namespace == "aten":
            reads: list[Tensor] = []
            writes: list[Tensor] = []
            is_view = False
            for argument, value in zip(func._schema.arguments, args, strict=False):
                alias = argument.alias_info
                is_view = is_view or (alias is not None and not alias.is_write)
                tensors = [one for one in tree_leaves(value) if isinstance(one, Tensor)]
                (writes if alias is not None and alias.is_write else reads).extend(tensors)
            if not is_view:
                writes += [one for one in tree_leaves(result) if isinstance(one, Tensor)]
                self.access(self.current, str(func), reads, writes)
        return result


class FakeSideStream:
    """A side stream of the sanitizer's."""

    streams: Streams
    is_apart = True

    def __init__(self, _device: torch.device) -> None:
        pass

    @contextmanager
    def beside(self) -> Iterator[None]:
        self.streams.wait(self.streams.record(), "side stream", SIDE)
        before, self.streams.current = self.streams.current, SIDE
        yield
        self.streams.current = before

    def join(self) -> None:
        self.streams.wait(self.streams.record(SIDE), "join")


class FakeEvent:
    """Communication or work in a stream, for which the current stream can wait."""

    def __init__(self, streams: Streams, stream: int, why: str) -> None:
        self._streams, self._why = streams, why
        self._event = streams.record(stream)

    def is_completed(self) -> bool:
        return True

    def wait(self) -> None:
        self._streams.wait(self._event, self._why)


class Communication:
    """Communicates at once, and tells the sanitizer of the streams that NCCL would use."""

    def __init__(self, worker: Any, streams: Streams) -> None:
        self._streams = streams
        groups = worker.redistribution._gather._groups
        self._between = groups.between
        self._is_reducing = False

    @contextmanager
    def patched(self) -> Iterator[None]:
        with ExitStack() as stack:
            for kind, name, method in (
                (ParameterGather, "start", self._gather),
                (GradientReduction, "_start_next", self._reduce),
                (ExchangeGroup, "start", self._exchange),
            ):
                stack.enter_context(patch.object(kind, name, _method(method, getattr(kind, name))))
            batch = dist.batch_isend_irecv
            stack.enter_context(
                patch.object(dist, "batch_isend_irecv", lambda ops: self._messages(batch, ops))
            )
            yield

    def _gather(self, original: Any, gather: Any, *args: Any) -> None:
        self._is_reducing = False
        original(gather, *args)

    def _reduce(self, original: Any, reduction: Any) -> None:
        self._is_reducing = True
        original(reduction)

    def _exchange(
        self, original: Any, group: ExchangeGroup, outgoing: Tensor, incoming: Tensor, *counts: Any
    ) -> FakeEvent:
        name = "between" if group is self._between else "inside"
        why = f"{'gradients' if self._is_reducing else 'parameters'} {name}"
        if group._group is None:
            # A rank alone copies in the current stream.
            original(group, outgoing, incoming, *counts)
            return FakeEvent(self._streams, self._streams.current, why)
        with self._streams.paused():
            original(group, outgoing, incoming, *counts).wait()
        return self._communicate(NAMES.index(name), why, [outgoing], [incoming])

    def _messages(self, original: Any, operations: Sequence[dist.P2POp]) -> list[FakeEvent]:
        with self._streams.paused():
            for work in original(operations):
                work.wait()
        received = [one.tensor for one in operations if one.op is dist.irecv]
        sent = [one.tensor for one in operations if one.op is dist.isend]
        return [self._communicate(MESSAGES, "messages", sent, received)] * len(operations)

    def _communicate(self, stream: int, why: str, sent: list[Tensor], received: list[Tensor]) -> FakeEvent:
        """Work in a stream of NCCL's, behind the current one."""
        self._streams.wait(self._streams.record(), "launch", stream)
        self._streams.access(stream, why, sent, received)
        return FakeEvent(self._streams, stream, why)


def _method(wrapped: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any) -> Any:
        return wrapped(original, self, *args)

    return method


def races(
    strategies: Sequence[str], lengths: Sequence[int], left_out: Sequence[str]
) -> list[set[tuple[str, str, str]]]:
    """Train a step under each strategy, without each of these waits in turn; return the races of each run."""
    return [_races(strategies, lengths, wait) for wait in left_out]


def _races(strategies: Sequence[str], lengths: Sequence[int], left_out: str) -> set[tuple[str, str, str]]:
    config = small_config(
        vocab_size=8, hidden_size=8, intermediate_size=4, num_attention_heads=2, num_key_value_heads=2
    )
    tokens = [np.arange(length) % config.vocab_size for length in lengths]
    plans = [plan_for(dist.get_world_size(), strategy, lengths) for strategy in strategies]
    streams = FakeSideStream.streams = Streams(left_out)
    with patch.object(exchange_groups, "SideStream", FakeSideStream):
        worker = make_worker(strategies, config=config)
    streams.distinguish(worker.persistent)
    fit = worker.local_shard.fit

    def fit_and_distinguish(*args: Any) -> None:
        # The allocator may give the memory to any computation from now on, and the buffer another address.
        streams.access(COMPUTATION, "resize", [], worker.persistent)
        fit(*args)
        streams.distinguish(worker.persistent)

    with (
        patch.object(worker.local_shard, "fit", fit_and_distinguish),
        Communication(worker, streams).patched(),
        streams,
    ):
        for plan in plans:
            train_step(worker, plan, tokens.__getitem__)
    return streams.races
