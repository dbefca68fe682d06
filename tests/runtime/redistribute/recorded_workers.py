"""Workers of test_launch_order.py: steps whose launches are recorded while communication is synchronous."""

from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple
from unittest.mock import PropertyMock, patch

import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis.config.kinds import ShardingKind
from hydraulis.config.model import ModelConfig
from hydraulis.runtime.pipeline import executor
from hydraulis.runtime.ranks.device import CPU
from hydraulis.runtime.ranks.streams import StreamEvent
from hydraulis.runtime.redistribute.exchange_groups import ExchangeGroup, ExchangeGroups, StartedExchange
from hydraulis.runtime.redistribute.parameter_gather import ParameterGather
from hydraulis.runtime.step import train_step
from runtime.tiny import make_worker, planner_for

Name = tuple[Hashable, ...]


class Recorded(NamedTuple):
    """A step of one rank.

    Attributes:
        launches: In order.
        loads: Number of buckets in each load of the parameter gather.
        loss: Of the step.
        usual_loss: Loss of the same step with overlapped communication.
    """

    launches: list[Name]
    loads: list[int]
    loss: float
    usual_loss: float


class Recorder:
    """Records the launches of a rank, and lets each communication complete before the rank goes on.

    Messages are sent as on NCCL: the sender waits until the receiver has received. Gradient reductions start
    as on CUDA, where completing an earlier one does not depend on the host.
    """

    def __init__(self, worker: Any) -> None:
        self.launches: list[Name] = []
        self.loads: list[int] = []
        self._groups: dict[int, str] = {}
        self._redistribution = type(worker.redistribution)
        exchange_groups = worker.redistribution._gather._groups
        for name in ("inside", "between"):
            self._groups[id(getattr(exchange_groups, name))] = name
        self._counts = {"inside": 0, "between": 0}
        self._micro_batch = -1

    def restart(self) -> None:
        """Forget the launches so far."""
        self.launches, self.loads = [], []
        self._counts = {"inside": 0, "between": 0}

    def patched(self) -> ExitStack:
        stack = ExitStack()
        side_stream = PropertyMock(return_value=True)
        stack.enter_context(patch.object(ExchangeGroups, "has_side_stream", side_stream))
        for kind, name, wrapped in (
            (ExchangeGroup, "start", self._exchange),
            (ParameterGather, "_start_load", self._load),
            (executor._Run, "forward", self._compute),
            (executor._Run, "backward", self._compute),
            (executor._Run, "exchange", self._message),
            (self._redistribution, "_before_forward", self._forward),
            (self._redistribution, "_after_accumulation", self._backward),
        ):
            stack.enter_context(patch.object(kind, name, _method(wrapped, getattr(kind, name))))
        stack.enter_context(patch.object(dist, "batch_isend_irecv", _rendezvous(dist.batch_isend_irecv)))
        return stack

    def _exchange(self, original: Any, group: ExchangeGroup, *args: Any) -> StartedExchange:
        kind = self._groups[id(group)]
        self.launches.append((kind, self._counts[kind]))
        self._counts[kind] += 1
        started: StartedExchange = original(group, *args)
        started.wait()
        return StreamEvent(CPU)

    def _load(self, original: Any, gather: ParameterGather, buckets: Sequence[Any]) -> Any:
        self.loads.append(len(buckets))
        return original(gather, buckets)

    def _compute(self, original: Any, run: Any, micro_batch: int) -> None:
        self._micro_batch = micro_batch
        original(run, micro_batch)

    def _message(
        self, original: Any, run: Any, peer: int, send: Any, receive: Any, *, towards_next: bool
    ) -> None:
        sent, received = run._unless_empty(send), run._unless_empty(receive)
        if sent is not None or received is not None:
            self.launches.append(("message", peer, sent, received))
        original(run, peer, send, receive, towards_next=towards_next)

    def _forward(self, original: Any, redistribution: Any, layer_group: int, *args: Any) -> None:
        # The hook launches the gather of the next layer group.
        original(redistribution, layer_group, *args)
        self._note("forward", layer_group)

    def _backward(self, original: Any, redistribution: Any, layer_group: int, *args: Any) -> None:
        self._note("backward", layer_group)
        original(redistribution, layer_group, *args)

    def _note(self, what: str, layer_group: int) -> None:
        # A layer group has several parameters.
        name = (what, self._micro_batch, layer_group)
        if name not in self.launches:
            self.launches.append(name)


def _method(wrapped: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **options: Any) -> Any:
        return wrapped(original, self, *args, **options)

    return method


def _rendezvous(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let the batch of a pair of ranks return once both have received."""

    def exchange(operations: Sequence[dist.P2POp]) -> Any:
        works = original(operations)
        for work in works:
            work.wait()
        peers = {one.peer for one in operations}
        if all(one.group in (None, dist.group.WORLD) for one in operations):
            tokens: list[Tensor] = [torch.zeros(1) for _ in range(2 * len(peers))]
            acknowledged = [
                dist.P2POp(kind, tokens.pop(), peer)
                for peer in sorted(peers)
                for kind in (dist.irecv, dist.isend)
            ]
            for work in original(acknowledged):
                work.wait()
        # A second wait for a message would wait for the next one.
        return [StreamEvent(CPU)] * len(works)

    return exchange


def recorded(
    config: ModelConfig,
    strategies: Sequence[str],
    lengths: Sequence[int],
    sharding: ShardingKind = "none",
    frozen: tuple[str, ...] = (),
) -> list[Recorded]:
    """Train one step under each strategy, and again from the start with synchronous communication."""
    tokens = [torch.arange(length).numpy() % config.vocab_size for length in lengths]
    targets = [length - 1 for length in lengths]
    plans = [planner_for(dist.get_world_size(), [one]).plan(lengths, targets) for one in strategies]
    worker = make_worker(strategies, config=config, sharding=sharding, frozen=frozen)
    usual = [train_step(worker, plan, tokens.__getitem__).loss for plan in plans]
    worker = make_worker(strategies, config=config, sharding=sharding, frozen=frozen)
    recorder, steps = Recorder(worker), []
    with recorder.patched():
        for plan, usual_loss in zip(plans, usual, strict=True):
            recorder.restart()
            loss = train_step(worker, plan, tokens.__getitem__).loss
            steps.append(Recorded(recorder.launches, recorder.loads, loss, usual_loss))
    return steps
