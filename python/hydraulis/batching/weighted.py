"""Micro-batches of items whose time does not follow from their tokens, such as groups with a common prefix.

Items are assigned longest first to the micro-batch with the least time that has room. Where that leaves an
item without room, best-fit decreasing by tokens decides.
"""

import numpy as np
import numpy.typing as npt

from hydraulis._core import pack_windows
from hydraulis.batching.epoch.order import Indices
from hydraulis.batching.exact_count import arrange_bins
from hydraulis.errors import InfeasibleError

Times = npt.NDArray[np.float64]


def plan_weighted(  # noqa: PLR0913  the options of a step's planner
    tokens: Indices,
    times: Times,
    *,
    ranks: int,
    cap_tokens: int,
    count: int | None = None,
    multiple_of: int = 1,
    by_slot: bool,
) -> list[list[Indices]]:
    """Assign items to micro-batches, the same number for every rank.

    Args:
        tokens: Tokens of each item, int64 [n].
        times: Time of each item, float64 [n].
        ranks: Number of ranks.
        cap_tokens: Most tokens of a micro-batch.
        count: Micro-batches of each rank; None for as few as are found.
        multiple_of: Divisor of the number that is found.
        by_slot: Whether the ranks wait for each other in every micro-batch.

    Returns:
        The micro-batches of each rank, as positions of items.

    Raises:
        InfeasibleError: An item is longer than the cap (code `sequence_too_long`), or the items were not
            packed into `count` micro-batches (`batch_unplaceable`).
    """
    longest = int(tokens.argmax())
    if tokens[longest] > cap_tokens:
        message = (
            f"item {longest} has {tokens[longest]:,} tokens, and a micro-batch has at most {cap_tokens:,}"
        )
        raise InfeasibleError(message + "; split it, or raise cap_tokens", code="sequence_too_long")
    least = -(-int(tokens.sum()) // (ranks * cap_tokens))
    # With a micro-batch for each item, all fit.
    first = -(-least // multiple_of) * multiple_of
    numbers = range(first, len(tokens) + multiple_of, multiple_of) if count is None else (count,)
    for number in numbers:
        bins = _pack(tokens, times, ranks * number, cap_tokens)
        if bins is not None:
            return arrange_bins(bins, times, ranks, by_slot=by_slot)
    message = (
        f"a step has {len(tokens)} items with {tokens.sum():,} tokens, and no packing was found into {ranks} "
        f"x {count} micro-batches of {cap_tokens:,} tokens; make the step smaller, or raise micro_batches"
    )
    raise InfeasibleError(message, code="batch_unplaceable")


def _pack(tokens: Indices, times: Times, num_bins: int, cap_tokens: int) -> list[Indices] | None:
    room = np.full(num_bins, cap_tokens, dtype=np.int64)
    busy = np.zeros(num_bins)
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    for item in np.argsort(-times, kind="stable").tolist():
        place = int(np.where(room >= tokens[item], busy, np.inf).argmin())
        if room[place] < tokens[item]:
            windows = pack_windows(tokens, window_tokens=cap_tokens)
            if len(windows) > num_bins:
                return None
            packed = np.split(windows.sequences, windows.window_offsets[1:-1])
            return packed + [np.zeros(0, dtype=np.int64)] * (num_bins - len(windows))
        bins[place].append(item)
        room[place] -= tokens[item]
        busy[place] += times[item]
    return [np.array(one, dtype=np.int64) for one in bins]
