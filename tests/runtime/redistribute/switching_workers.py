"""Workers of test_switching.py: change the strategy every step; count storages, modules, groups."""

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from hydraulis import Plan
from hydraulis.data.tokens import SequenceTokens
from hydraulis.runtime.memory.saved_activations import Storages, storage_key
from hydraulis.runtime.step import train_step
from hydraulis.runtime.worker import Worker
from runtime.tiny import make_worker, planner_for
from small_model import small_config

if TYPE_CHECKING:
    from torch.multiprocessing.reductions import StorageWeakRef

TIMEOUT = timedelta(seconds=60)
# Of a wait that ends as soon as it may.
PATIENCE_S = 2.0


class Made(NamedTuple):
    """What one step made on one rank.

    Attributes:
        lasting_bytes: Bytes of storages that operations of the step made and that are there after it.
        temporary: Number of all storages that the step made.
        modules: Number of modules built.
        groups: Ranks of each process group, made with the run's timeout.
        groups_ms: Time of making groups, as the step reports it.
    """

    lasting_bytes: int
    temporary: int
    modules: int
    groups: list[list[int]]
    groups_ms: float


def switch(strategies: Sequence[str], sound: int) -> list[Made]:
    """Train a step under each strategy, all batches alike.

    Args:
        strategies: Strategies, one after another.
        sound: Number of steps that are the runtime's own; the others make a buffer anew, as they should not.
    """
    config = small_config()
    worker = make_worker(strategies, config=config)
    generator = torch.Generator().manual_seed(0)
    tokens = [torch.randint(config.vocab_size, (20,), generator=generator).numpy() for _ in range(8)]
    counts = [len(one) for one in tokens]
    targets = [count - 1 for count in counts]
    plans = [planner_for(dist.get_world_size(), [one]).plan(counts, targets) for one in strategies]
    # Else each collection below goes through all modules that are loaded.
    gc.freeze()
    made = []
    for step, plan in enumerate(plans):
        is_sound = step < sound
        made.append(_made(worker, plan, tokens, is_sound=is_sound, patience_s=PATIENCE_S * is_sound))
    return made


def _made(
    worker: Worker, plan: Plan, tokens: Sequence[SequenceTokens], *, is_sound: bool, patience_s: float
) -> Made:
    with counted() as counts:
        groups_ms = train_step(worker, plan, tokens.__getitem__).measured.groups_ms
        if not is_sound:
            worker.optimizer_shard.gradient = worker.optimizer_shard.gradient.clone()
    # What a cycle keeps is garbage all the same; gloo's thread lets go of a tensor a moment after the wait.
    gc.collect()
    deadline = time.monotonic() + patience_s
    while counts.storages.lasting_bytes() and time.monotonic() < deadline:
        time.sleep(0.005)
    lasting = counts.storages.lasting_bytes()
    return Made(lasting, counts.storages.given, counts.modules, counts.groups, groups_ms)


class _Counts:
    def __init__(self) -> None:
        self.storages = _NewStorages()
        self.modules = 0
        self.groups: list[list[int]] = []


@contextmanager
def counted() -> Iterator[_Counts]:
    """Follow storages, modules and process groups for as long as the context lasts."""
    counts = _Counts()
    make_group, build = dist.new_group, nn.Module.__init__

    def group(ranks: list[int], *, timeout: timedelta, **options: Any) -> Any:
        assert timeout == TIMEOUT
        counts.groups.append(list(ranks))
        return make_group(ranks, timeout=timeout, **options)

    def module(self: nn.Module, *args: Any, **options: Any) -> None:
        counts.modules += 1
        build(self, *args, **options)

    with ExitStack() as stack:
        stack.enter_context(patch.object(dist, "new_group", group))
        stack.enter_context(patch.object(nn.Module, "__init__", module))
        stack.enter_context(counts.storages)
        yield counts


class _NewStorages(Storages):
    """Follows every storage that an operation gives and that was none of its inputs'."""

    def __init__(self) -> None:
        super().__init__()
        self._before: set[StorageWeakRef] = set()

    @property
    def given(self) -> int:
        return len(self._made)

    def lasting_bytes(self) -> int:
        """Add up the bytes of the storages that are new and not gone."""
        return sum(self.made_and_in_use().values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        self._before.update(key for key in map(storage_key, tensors) if key not in self._made)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        for key in self._before & self._made.keys():
            del self._made[key]
        return result
