"""The comparison of planners as a table."""

from collections.abc import Mapping, Sequence

from hydraulis._core import CostProfile
from hydraulis.planner.compare import PARTS, PlannerUnderTest
from hydraulis.text.values import format_percent

_HEADINGS = {
    "compute": "computing",
    "slower_rank": "slow rank",
    "bubble": "bubble",
    "slower_replica": "slow replica",
    "unused": "unused",
    "transfers": "transfers",
}
_LEGEND = """\
speed: relative to the first planner. memory: of the fullest GPU, as a share of
its limit.{overlapped} The other columns are shares of all GPUs' time:
needed: the least that the sequences need, each under the scheme that takes the
  least time of its GPUs;
computing: all computing. A wide replica takes more than is needed, because its
  GPUs exchange activations;
slow rank: waiting for the slowest rank of a stage;
bubble: stages waiting for one another;
slow replica: waiting for the slowest replica;
unused: GPUs without a replica{transfers}.
"""
_OVERLAPPED_LEGEND = " overlapped: the share of transfers that computation\noverlaps."
_TRANSFERS_LEGEND = ";\ntransfers: those that computation does not overlap"


def comparison_table(planners: Sequence[PlannerUnderTest], profile: CostProfile) -> str:
    """Return two tables with a row for each planner, the legend, and a note for each extrapolated profile.

    The first table has times of steps, the memory of the fullest rank and the overlapped share of transfers,
    the second one shares of all ranks' time, with exposed transfers.

    Args:
        planners: Planners with their results, at least one; speeds are relative to the first.
        profile: Cost profile that the planners used.
    """
    has_transfers = any(one.parts_ms["transfers"] or any(one.overlapped_ms) for one in planners)
    parts = [part for part in PARTS if has_transfers or part != "transfers"]
    shares = {"needed": [format_percent(one.needed_share) for one in planners]}
    for part in parts:
        shares[_HEADINGS[part]] = [format_percent(one.share(part)) for one in planners]
    names = [one.name for one in planners]
    times = _times(planners, profile)
    if has_transfers:
        times["overlapped"] = [format_percent(one.overlapped_share) for one in planners]
    tables = (_table(names, times), _table(names, shares))
    notes = "".join(f"{one.name}: {one.extrapolation}\n" for one in planners if one.extrapolation)
    legend = _LEGEND.format(
        transfers=_TRANSFERS_LEGEND if has_transfers else "",
        overlapped=_OVERLAPPED_LEGEND if has_transfers else "",
    )
    return "\n".join((*tables, legend)) + notes


def _times(planners: Sequence[PlannerUnderTest], profile: CostProfile) -> dict[str, list[str]]:
    used = [0.0 if one.memory is None else one.memory.total_bytes for one in planners]
    return {
        "mean ms": [f"{one.mean_ms:,.1f}" for one in planners],
        "p50": [f"{one.percentile_ms(50):,.0f}" for one in planners],
        "p99": [f"{one.percentile_ms(99):,.0f}" for one in planners],
        "speed": [f"{planners[0].mean_ms / one.mean_ms:.2f}x" for one in planners],
        "memory": [format_percent(one / profile.memory_bytes) for one in used],
    }


def _table(names: Sequence[str], columns: Mapping[str, Sequence[str]]) -> str:
    """Return a line of headings and a line for each name, with the columns aligned to the right."""
    width = max(map(len, names))
    widths = [max(len(heading), *map(len, cells)) for heading, cells in columns.items()]
    rows = [("", *columns), *zip(names, *columns.values(), strict=True)]
    lines = []
    for name, *cells in rows:
        aligned = [f"{cell:>{most}}" for cell, most in zip(cells, widths, strict=True)]
        lines.append("  ".join((f"{name:{width}}", *aligned)) + "\n")
    return "".join(lines)
