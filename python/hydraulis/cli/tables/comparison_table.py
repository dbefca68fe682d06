"""Planners that were compared, as a table."""

from collections.abc import Sequence

from hydraulis._core import CostProfile
from hydraulis.planner.compare import PARTS, PlannerUnderTest
from hydraulis.text.numbers import format_percent

_HEADINGS = {
    "compute": "computing",
    "slower_rank": "slow rank",
    "bubble": "bubble",
    "slower_replica": "slow replica",
    "unused": "left out",
    "transfers": "transfers",
}
_LEGEND = """\
speed: against the first. memory: of the fullest GPU, of what it may hold. Else shares of all GPUs' time:
slow rank, waiting for the slowest of a stage; bubble, stages for one another; slow replica, for the end of
the iteration; left out, in no replica{transfers}."""
_OF_TRANSFERS = "; transfers, what computing does not hide of them.\nhidden: the share that it does"


def contestant_table(contestants: Sequence[PlannerUnderTest], profile: CostProfile) -> str:
    """Return a row for each planner: times of steps, parts of all ranks' time, the fullest rank's memory.

    Where there are transfers, what of them is not hidden is one of the parts, and their share that is
    hidden a column of its own. Below stand what the columns are, and whose plans go beyond what the profile
    has measured.

    Args:
        contestants: at least one; how many times as fast is told against the first.
        profile: that they planned with.
    """
    moved = any(one.parts_ms["transfers"] or any(one.hidden_ms) for one in contestants)
    parts = [part for part in PARTS if moved or part != "transfers"]
    width = max(10, *(len(one.name) for one in contestants))
    head = f"{'':{width}}{'mean ms':>10}{'p50':>9}{'p99':>9}{'speed':>8}"
    head += "".join(f"{_HEADINGS[part]:>14}" for part in parts)
    head += f"{'hidden':>9}" if moved else ""
    head += f"{'memory':>10}"
    first = contestants[0].mean_ms
    lines = [
        head,
        *(_row(one, width, first, parts) + _ends(one, profile, moved=moved) for one in contestants),
        _LEGEND.format(transfers=_OF_TRANSFERS if moved else ""),
        *(f"{one.name}: {one.guess}" for one in contestants if one.guess),
    ]
    return "\n".join(lines) + "\n"


def _row(one: PlannerUnderTest, width: int, first_ms: float, parts: Sequence[str]) -> str:
    row = (
        f"{one.name:{width}}{one.mean_ms:>10,.1f}{one.percentile_ms(50):>9,.0f}{one.percentile_ms(99):>9,.0f}"
    )
    row += f"{first_ms / one.mean_ms:>7.2f}x"
    whole = sum(one.parts_ms.values())
    return row + "".join(f"{format_percent(one.parts_ms[part] / whole):>14}" for part in parts)


def _ends(one: PlannerUnderTest, profile: CostProfile, *, moved: bool) -> str:
    hidden = f"{format_percent(one.hidden_share):>9}" if moved else ""
    used = 0.0 if one.memory is None else one.memory.total_bytes
    return f"{hidden}{format_percent(used / profile.memory_bytes):>10}"
