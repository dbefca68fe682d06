"""Bins onto ranks, the same number for each, and no empty micro-batch.

Legend: parts are the micro-batches of each rank, as positions in the step; slot i has the i-th micro-batch of
every rank.
"""

import numpy as np
import numpy.typing as npt

from hydraulis.batching.epoch.order import Indices

MicroBatches = list[list[Indices]]
Times = npt.NDArray[np.float64]


def arrange_bins(bins: list[Indices], times: Times, ranks: int, *, by_slot: bool) -> MicroBatches:
    """Assign bins to ranks, the same number to each.

    Args:
        bins: Sequences of each bin, a multiple of `ranks`.
        times: Time of each sequence.
        ranks: Number of ranks.
        by_slot: Whether the time is the sum over slots of the longest micro-batch: bins of similar time then
            share a slot. Otherwise the ranks' totals are made equal, longest bin first.
    """
    longest_first = sorted(bins, key=lambda part: (-times[part].sum(), part.tolist()))
    slots = [longest_first[start : start + ranks] for start in range(0, len(bins), ranks)]
    totals = [0.0] * ranks
    parts: MicroBatches = [[] for _ in range(ranks)]
    for slot in slots:
        order = list(range(ranks)) if by_slot else sorted(range(ranks), key=lambda rank: (totals[rank], rank))
        for rank, part in zip(order, slot, strict=True):
            parts[rank].append(part)
            totals[rank] += float(times[part].sum())
    return parts


def fill_empty(parts: MicroBatches, times: Times) -> MicroBatches:
    """Move one sequence into each empty micro-batch: the shortest of the rank, or else of any rank.

    Args:
        parts: Micro-batches of each rank, with at least as many sequences as micro-batches.
        times: Time of each sequence.
    """
    filled = [list(rank) for rank in parts]
    empty = [
        (rank, slot) for rank, own in enumerate(filled) for slot, part in enumerate(own) if not part.size
    ]
    for rank, slot in empty:
        donor, there = _donor(filled, times, rank)
        part = filled[donor][there]
        moved = int(np.argmin(times[part]))
        filled[rank][slot] = part[moved : moved + 1]
        filled[donor][there] = np.delete(part, moved)
    return filled


def _donor(parts: MicroBatches, times: Times, rank: int) -> tuple[int, int]:
    """Find the rank and slot of the shortest sequence that leaves a micro-batch non-empty."""
    choices = (
        (donor != rank, float(times[part].min()), donor, slot)
        for donor, own in enumerate(parts)
        for slot, part in enumerate(own)
        if part.size > 1
    )
    return min(choices)[2:]
