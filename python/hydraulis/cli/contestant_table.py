"""Planners that were compared, as a table."""

from collections.abc import Sequence

from hydraulis._core import CostProfile
from hydraulis.planner.compare import PARTS, Contestant

_HEADINGS = {
    "compute": "computing",
    "slower_rank": "slow rank",
    "bubble": "bubble",
    "slower_replica": "slow replica",
    "unused": "left out",
}


def contestant_table(contestants: Sequence[Contestant], profile: CostProfile) -> str:
    """Return a row for each planner: iteration times, parts of all ranks' time, the fullest rank's memory.

    Args:
        contestants: at least one; how many times as fast is told against the first.
        profile: that they planned with.
    """
    width = max(10, *(len(one.name) for one in contestants))
    head = f"{'':{width}}{'mean ms':>10}{'p50':>9}{'p99':>9}{'speed':>8}"
    head += "".join(f"{_HEADINGS[part]:>14}" for part in PARTS)
    head += f"{'memory':>10}"
    first = contestants[0].mean_ms
    lines = [head, *(_row(one, width, first, profile.memory_bytes) for one in contestants), ""]
    return "\n".join(lines)


def _row(one: Contestant, width: int, first_ms: float, memory_bytes: int) -> str:
    row = (
        f"{one.name:{width}}{one.mean_ms:>10,.1f}{one.percentile_ms(50):>9,.0f}{one.percentile_ms(99):>9,.0f}"
    )
    row += f"{first_ms / one.mean_ms:>7.2f}x"
    whole = sum(one.parts_ms.values())
    row += "".join(f"{100 * one.parts_ms[part] / whole:>12.1f} %" for part in PARTS)
    used = 0.0 if one.memory is None else one.memory.total_bytes
    return f"{row}{100 * used / memory_bytes:>8.1f} %"
