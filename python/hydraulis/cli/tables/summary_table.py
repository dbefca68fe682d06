"""The table at the end of a run."""

from rich.table import Table

from hydraulis.config.planner import MIB
from hydraulis.runtime.records.recorder import RunSummary
from hydraulis.text.numbers import format_percent

# By the kind of device: what the table's times and memory are.
TIME_NOTES = {
    "cpu": (
        "Planned and measured times are CPU time of the slowest replica, without transfers and optimizer.",
        "Ranks that share cores take turns on them: the wall clock shows the work of all replicas together.",
        "Memory is that of tensors, counted where tokens are more than before.",
    ),
    "cuda": (
        "Planned and measured times are the slowest replica's device's, without transfers and optimizer.",
        "Memory is the allocator's peak.",
    ),
}


def summary_table(summary: RunSummary, num_steps: int) -> Table:
    """Make it.

    Args:
        summary: of the steps that were trained.
        num_steps: that the run was to have.
    """
    end = summary.first_step + summary.steps - 1
    stopped = "" if end == num_steps else f" (stopped after step {end} of {num_steps})"
    resumed = f" from step {summary.first_step} on" if summary.first_step > 1 else ""
    title = f"{summary.steps} iterations{resumed}, each planned anew{stopped}"
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_row("loss", f"{summary.first_loss:.3f} at the start, {summary.last_loss:.3f} nats at the end")
    if summary.evaluations:
        table.add_row("loss on what is held out", _evaluated(summary))
    table.add_row("speed", f"{summary.tokens_per_s:,.0f} tokens/s  {mfu(summary.mfu)}".rstrip())
    for number, (name, count) in enumerate(summary.strategies):
        table.add_row("" if number else "chosen", f"{count:3d} x  {name}")
    table.add_row("planned time", f"{summary.planned_ms / 1e3:,.2f} s in all")
    table.add_row("measured time", _measured(summary))
    table.add_row("planning", f"{summary.plan_ms:,.1f} ms in the median step")
    table.add_row(
        "ranks",
        f"wait {format_percent(summary.bubble)} of their replica's time for other stages; "
        f"the busiest computes {summary.imbalance:.2f} times the mean",
    )
    table.add_row(
        "transfers",
        f"{format_percent(summary.transfer_share)} of the time on the wall is spent on them alone",
    )
    table.add_row("process groups", f"{summary.groups_ms:,.0f} ms to make them, each on first use")
    table.add_row("memory", _memory(summary))
    table.add_row("best static strategy", _static(summary))
    return table


def mfu(share: float | None) -> str:
    """Write the model FLOPs utilisation, and space behind it; nothing where it is not known."""
    return "" if share is None else f"MFU {format_percent(share)}  "


def _evaluated(summary: RunSummary) -> str:
    first, last = summary.evaluations[0], summary.evaluations[-1]
    before = f"{first.loss:.3f} after step {first.step}, " if first != last else ""
    return f"{before}{last.loss:.3f} nats after step {last.step}"


def _measured(summary: RunSummary) -> str:
    measured = f"{summary.measured_ms / 1e3:,.2f} s in all"
    if summary.median_error is None:
        return measured
    return f"{measured}; the median iteration is off by {format_percent(summary.median_error)}"


def _memory(summary: RunSummary) -> str:
    if summary.memory is None:
        return f"at most {summary.memory_bytes / MIB:,.0f} MiB on a rank"
    memory = summary.memory
    return (
        f"at most {memory.held_bytes / MIB:,.0f} MiB on a rank, {memory.planned_bytes / MIB:,.0f} planned; "
        f"the median is off by {format_percent(memory.median_error)}"
    )


def _static(summary: RunSummary) -> str:
    if not summary.static_steps:
        return "left out: planned times were corrected on the way, and its own could not be"
    if summary.static is None:
        return "none: no strategy of the list admits the longest sequence"
    ratio = summary.static.planned_ms / summary.static_planned_ms
    planned_s = summary.static.planned_ms / 1e3
    steps = f" for a sample of {summary.static_steps} steps"
    sample = steps if summary.static_steps < summary.steps else ""
    longer = f"{ratio:.2f} times as long as the run's plans{' of these' if sample else ''}"
    return f"{summary.static.strategy}: {planned_s:,.2f} s planned{sample}, {longer}"
