"""An exact number of micro-batches for every rank, and no empty one.

Legend: parts are the micro-batches of each rank, as positions in the step; slot i has the i-th micro-batch of
every rank.
"""

import numpy as np
import numpy.typing as npt

from hydraulis.batching.order import Indices

MicroBatches = list[list[Indices]]
Times = npt.NDArray[np.float64]

_NOTHING = np.zeros(0, dtype=np.int64)


def split_slots(parts: MicroBatches, times: Times, count: int, *, by_slot: bool) -> MicroBatches:
    """Split micro-batches until every rank has `count`; none gets more tokens than before.

    Args:
        parts: Micro-batches of each rank, at most `count` each.
        times: Time of each sequence.
        count: Micro-batches of each rank in the result.
        by_slot: Whether the time is the sum over slots of the longest micro-batch. All ranks split the same
            slot then, the one whose split costs least. Otherwise each rank splits its longest micro-batch.
    """
    if not by_slot:
        return [_split_rank(list(rank), times, count) for rank in parts]
    slots = [list(slot) for slot in zip(*parts, strict=True)]
    # The extra time of splitting each slot, the empty parts and the two slots that it gives.
    splits = [_split_slot(slot, times) for slot in slots]
    while len(slots) < count:
        best = min(range(len(slots)), key=lambda slot: splits[slot][:2])
        first, second = splits[best][2:]
        for place, slot in ((best, first), (len(slots), second)):
            slots[place : place + 1] = [slot]
            splits[place : place + 1] = [_split_slot(slot, times)]
    return [list(rank) for rank in zip(*slots, strict=True)]


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


def _split_rank(own: list[Indices], times: Times, count: int) -> list[Indices]:
    while len(own) < count:
        place = max(
            range(len(own)), key=lambda slot: (own[slot].size > 1, times[own[slot]].sum()), default=-1
        )
        if place < 0:
            own.append(_NOTHING)
            continue
        own[place], second = _halves(own[place], times)
        own.append(second)
    return own


def _split_slot(slot: list[Indices], times: Times) -> tuple[float, int, list[Indices], list[Indices]]:
    halves = [_halves(part, times) for part in slot]
    first, second = [one for one, _ in halves], [other for _, other in halves]
    before, one, other = (max(float(times[part].sum()) for part in side) for side in (slot, first, second))
    return one + other - before, sum(not part.size for part in second), first, second


def _halves(part: Indices, times: Times) -> tuple[Indices, Indices]:
    """Divide a micro-batch into two of nearly equal time, the longer one first."""
    sides: tuple[list[int], list[int]] = ([], [])
    totals = [0.0, 0.0]
    for sequence in part[np.argsort(-times[part], kind="stable")].tolist():
        shorter = int(totals[1] < totals[0])
        sides[shorter].append(sequence)
        totals[shorter] += times[sequence]
    longer = int(totals[1] > totals[0])
    first, second = (np.array(sides[side], dtype=np.int64) for side in (longer, 1 - longer))
    return first, second
