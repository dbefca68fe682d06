"""The comparison of planners as a table."""

from collections.abc import Sequence

from hydraulis._core import CostProfile
from hydraulis.planner.compare import PARTS, PlannerUnderTest
from hydraulis.text.numbers import format_percent

_HEADINGS = {
    "compute": "computing",
    "slower_rank": "slow rank",
    "bubble": "bubble",
    "slower_replica": "slow replica",
    "unused": "unused",
    "transfers": "transfers",
}
_LEGEND = """\
speed: relative to the first planner. memory: of the fullest GPU, as a share of its limit. Other columns are
shares of all GPUs' time: slow rank, waiting for the slowest rank of a stage; bubble, stages waiting for one
another; slow replica, waiting for the slowest replica; unused, GPUs without a replica{transfers}."""
_TRANSFERS_LEGEND = "; transfers,\nexposed ones. overlapped: the share of transfers that computation overlaps"


def comparison_table(planners: Sequence[PlannerUnderTest], profile: CostProfile) -> str:
    """Return a row for each planner, the legend, and a note for each planner that extrapolates the profile.

    A row has times of steps, shares of all ranks' time, and the memory of the fullest rank. With transfers it
    also has the exposed ones as a share of the time, and the overlapped share of all transfers.

    Args:
        planners: Planners with their results, at least one; speeds are relative to the first.
        profile: Cost profile that the planners used.
    """
    has_transfers = any(one.parts_ms["transfers"] or any(one.overlapped_ms) for one in planners)
    parts = [part for part in PARTS if has_transfers or part != "transfers"]
    width = max(10, *(len(one.name) for one in planners))
    head = f"{'':{width}}{'mean ms':>10}{'p50':>9}{'p99':>9}{'speed':>8}"
    head += "".join(f"{_HEADINGS[part]:>14}" for part in parts)
    head += f"{'overlapped':>12}" if has_transfers else ""
    head += f"{'memory':>10}"
    first = planners[0].mean_ms
    lines = [
        head,
        *(
            _times(one, width, first, parts) + _overlap_and_memory(one, profile, has_transfers=has_transfers)
            for one in planners
        ),
        _LEGEND.format(transfers=_TRANSFERS_LEGEND if has_transfers else ""),
        *(f"{one.name}: {one.extrapolation}" for one in planners if one.extrapolation),
    ]
    return "\n".join(lines) + "\n"


def _times(one: PlannerUnderTest, width: int, first_ms: float, parts: Sequence[str]) -> str:
    row = (
        f"{one.name:{width}}{one.mean_ms:>10,.1f}{one.percentile_ms(50):>9,.0f}{one.percentile_ms(99):>9,.0f}"
    )
    row += f"{first_ms / one.mean_ms:>7.2f}x"
    total = sum(one.parts_ms.values())
    return row + "".join(f"{format_percent(one.parts_ms[part] / total):>14}" for part in parts)


def _overlap_and_memory(one: PlannerUnderTest, profile: CostProfile, *, has_transfers: bool) -> str:
    overlapped = f"{format_percent(one.overlapped_share):>12}" if has_transfers else ""
    used = 0.0 if one.memory is None else one.memory.total_bytes
    return f"{overlapped}{format_percent(used / profile.memory_bytes):>10}"
