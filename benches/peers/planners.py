"""One step's micro-batches by other frameworks' own functions, and by our sampler.

A planner takes a workload and returns the tokens of each sequence of each micro-batch of each rank. Slime and
the packing schedulers of Megatron-core are not on PyPI, so their rules are written here from their
descriptions; the longest-first heap (Graham 1969) is the plain way. The other rows call the packages.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heapreplace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow
import torch
from axolotl.utils.samplers.multipack import MultipackBatchSampler
from datasets import Dataset
from tensordict import TensorDict
from transformers.trainer_pt_utils import BatchRebalanceSampler
from trl import pack_dataset
from verl.utils.seqlen_balancing import (
    calculate_workload,
    get_seqlen_balanced_partitions,
    karmarkar_karp,
    rearrange_micro_batches,
)

from hydraulis.batching import BalancedBatchSampler

Barrier = Literal["step", "micro_batch"]
# Tokens of each sequence of each micro-batch of each rank.
MicroBatches = list[list[list[int]]]

# Relative time of a token and of a squared token: verl's constants, those of a model of 7 billion parameters.
LINEAR, QUADRATIC = 24_576, 1


def cost(length: int) -> int:
    """Return the relative time of a sequence."""
    return LINEAR * length + QUADRATIC * length * length


@dataclass(frozen=True, slots=True)
class Workload:
    """The sequences of one step, and the ranks that share them.

    Attributes:
        lengths: Tokens of each sequence, int64 [n].
        ranks: Number of data-parallel ranks.
        cap_tokens: Most tokens of a micro-batch.
        barrier: Place where the ranks wait for each other.
        count: Micro-batches of each rank, for planners that are told their number.
    """

    lengths: npt.NDArray[np.int64]
    ranks: int
    cap_tokens: int
    barrier: Barrier
    count: int


@dataclass(slots=True)
class Stopwatch:
    """The CPU time of one thread, of the parts that a framework spends before a step.

    Attributes:
        cpu_ms: Time so far.
    """

    cpu_ms: float = field(default=0.0)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of a block."""
        start = time.thread_time()
        yield
        self.cpu_ms += (time.thread_time() - start) * 1e3


Planner = Callable[[Workload, Stopwatch], MicroBatches]


def hydraulis(work: Workload, watch: Stopwatch) -> MicroBatches:
    """Plan by `BalancedBatchSampler`."""
    sampler = BalancedBatchSampler(
        work.lengths,
        cap_tokens=work.cap_tokens,
        cost=(LINEAR, QUADRATIC),
        ranks=work.ranks,
        rank=0,
        sequences_per_step=len(work.lengths),
        barrier=work.barrier,
    )
    with watch.running():
        step = sampler.step(0)
    return [[work.lengths[part].tolist() for part in rank] for rank in step.micro_batches]


def distributed_sampler(work: Workload, watch: Stopwatch) -> MicroBatches:
    """Take equal numbers of sequences in the order of the data, as torch's `DistributedSampler` does."""
    with watch.running():
        parts = np.array_split(work.lengths, work.ranks * work.count)
    return in_turn([part.tolist() for part in parts], work.ranks)


def transformers_rebalance(work: Workload, watch: Stopwatch) -> MicroBatches:
    """Plan by transformers' `BatchRebalanceSampler`, which has no token cap."""
    lengths = work.lengths.tolist()
    sampler: Any = BatchRebalanceSampler(
        lengths, len(lengths), dp_size=work.ranks, grad_accum=work.count, shuffle=False
    )
    # The sampler of a rank computes the micro-batches of all ranks and yields its own.
    with watch.running():
        all_ranks = sampler._assign(list(range(len(lengths))), lengths)
    return [[[lengths[i] for i in part] for part in rank] for rank in all_ranks]


def trl_packing(work: Workload, watch: Stopwatch) -> MicroBatches:
    """Pack by TRL's best-fit decreasing; its rows go to the ranks in turn."""
    offsets = np.concatenate([[0], np.cumsum(work.lengths)])
    tokens = pyarrow.array(np.zeros(offsets[-1], dtype=np.int8))
    column = pyarrow.LargeListArray.from_arrays(offsets, tokens)
    data = Dataset(pyarrow.table({"input_ids": column}))
    options = {"batch_size": len(work.lengths), "keep_in_memory": True}
    with watch.running():
        packed = pack_dataset(data, work.cap_tokens, "bfd", options)
    return in_turn(packed["seq_lengths"][:], work.ranks)


def axolotl_multipack(work: Workload, watch: Stopwatch) -> MicroBatches:
    """Pack by axolotl's `MultipackBatchSampler`; its bins go to the ranks in turn."""
    sampler = MultipackBatchSampler(
        range(len(work.lengths)),
        batch_size=1,
        batch_max_len=work.cap_tokens,
        lengths=work.lengths,
        bin_size=work.cap_tokens,
        drop_last=False,
        num_processes=1,
    )
    with watch.running():
        batches = sampler.generate_batches()
    return in_turn([work.lengths[bins[0]].tolist() for bins in batches], work.ranks)


def verl(work: Workload, watch: Stopwatch) -> MicroBatches:
    """Plan by verl's two functions: equal numbers of sequences for each rank, then micro-batches of a rank.

    The ranks compute their micro-batches at the same time, so only the slowest of them counts. They agree on
    the greatest number of micro-batches.
    """
    with watch.running():
        workloads = calculate_workload(torch.from_numpy(work.lengths)).tolist()
        owned = get_seqlen_balanced_partitions(workloads, work.ranks, equal_size=True)
    own = [work.lengths[part] for part in owned]
    found = [_verl_micro_batches(lengths, work.cap_tokens, None) for lengths in own]
    most = max(len(parts) for parts, _ in found)
    agreed = [
        (parts, ms) if len(parts) == most else _verl_micro_batches(lengths, work.cap_tokens, most)
        for lengths, (parts, ms) in zip(own, found, strict=True)
    ]
    watch.cpu_ms += max(ms for _, ms in agreed)
    return [parts for parts, _ in agreed]


def _verl_micro_batches(
    lengths: npt.NDArray[np.int64], cap: int, least: int | None
) -> tuple[list[list[int]], float]:
    rows = [torch.zeros(int(length), dtype=torch.int8) for length in lengths]
    batch = TensorDict({"input_ids": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}, [len(rows)])
    watch = Stopwatch()
    with watch.running():
        _, parts = rearrange_micro_batches(batch, cap, min_num_micro_batch=least)
    return [lengths[part].tolist() for part in parts], watch.cpu_ms


def megatron_schedule(work: Workload, watch: Stopwatch) -> MicroBatches:
    """Fill micro-batches in the order of the samples, as Megatron-core's packing scheduler does."""
    packs: list[list[int]] = [[]]
    tokens = 0
    with watch.running():
        for length in work.lengths.tolist():
            if tokens + length > work.cap_tokens:
                packs, tokens = [*packs, []], 0
            packs[-1].append(length)
            tokens += length
    return in_turn(packs, work.ranks)


def slime_schedule(work: Workload, watch: Stopwatch) -> MicroBatches:
    """Pack first fit, split until the ranks have equal numbers, then assign packs by largest differencing."""
    with watch.running():
        packs = _first_fit(work.lengths.tolist(), work.cap_tokens)
        while len(packs) % work.ranks:
            fullest = max(packs, key=len)
            packs.remove(fullest)
            packs += [fullest[::2], fullest[1::2]]
        times = [sum(map(cost, pack)) for pack in packs]
        owned = karmarkar_karp(times, work.ranks, equal_size=True)
    return [[packs[i] for i in part] for part in owned]


def _first_fit(lengths: Iterable[int], cap: int) -> list[list[int]]:
    room = np.empty(0, dtype=np.int64)
    packs: list[list[int]] = []
    for length in lengths:
        fitting = np.flatnonzero(room >= length)
        if not fitting.size:
            room, packs = np.append(room, cap), [*packs, []]
            fitting = np.array([len(packs) - 1])
        packs[fitting[0]].append(length)
        room[fitting[0]] -= length
    return packs


def longest_first(work: Workload, watch: Stopwatch) -> MicroBatches:
    """Assign each sequence, longest first, to the micro-batch of least time; there is no token cap."""
    heap = [(0, place) for place in range(work.ranks * work.count)]
    parts: list[list[int]] = [[] for _ in heap]
    with watch.running():
        for length in sorted(work.lengths.tolist(), reverse=True):
            total, place = heap[0]
            parts[place].append(length)
            heapreplace(heap, (total + cost(length), place))
    return in_turn(parts, work.ranks)


def in_turn(packs: Sequence[list[int]], ranks: int) -> MicroBatches:
    """Give packs to ranks as loaders do: each rank takes every `ranks`-th."""
    return [list(packs[rank::ranks]) for rank in range(ranks)]


PLANNERS: dict[str, Planner] = {
    "hydraulis": hydraulis,
    "torch DistributedSampler": distributed_sampler,
    "transformers rebalance": transformers_rebalance,
    "TRL packing": trl_packing,
    "axolotl multipack": axolotl_multipack,
    "verl": verl,
    "Megatron-core's rule": megatron_schedule,
    "slime's rule": slime_schedule,
    "longest-first heap": longest_first,
}
