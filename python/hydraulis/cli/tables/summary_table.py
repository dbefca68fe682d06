"""The summary of a run as a table."""

from rich.table import Table

from hydraulis.runtime.records.metrics import shared_devices_note
from hydraulis.runtime.records.recorder import RunSummary
from hydraulis.text.values import format_percent, mib

# Notes on the table's times and memory, by type of device.
TIME_NOTES = {
    "cpu": (
        "Planned and measured times are CPU times of the slowest replica, without transfers and optimizer.",
        "Ranks that share cores take turns: wall-clock time includes the work of all replicas.",
        "Memory is that of tensors, counted in steps with more tokens than before.",
    ),
    "cuda": (
        "Planned and measured times are device times of the slowest replica, without transfers and "
        "optimizer.",
        "Memory is the peak of torch's allocator.",
    ),
}


def summary_table(summary: RunSummary, num_steps: int) -> Table:
    """Return the table.

    Args:
        summary: Summary of the trained steps.
        num_steps: Number of steps of the whole run.
    """
    end = summary.first_step + summary.steps - 1
    stopped = "" if end == num_steps else f" (stopped after step {end} of {num_steps})"
    resumed = f" from step {summary.first_step} on" if summary.first_step > 1 else ""
    title = f"{summary.steps} steps{resumed}, each with its own plan{stopped}"
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_row("loss", f"{summary.first_loss:.3f} at the start, {summary.last_loss:.3f} nats at the end")
    if summary.evaluations:
        table.add_row("held-out loss", _evaluated(summary))
    table.add_row("speed", f"{summary.tokens_per_s:,.0f} tokens/s  {mfu(summary.mfu)}".rstrip())
    for number, (name, count) in enumerate(summary.strategies):
        table.add_row("" if number else "chosen", f"{count:3d} x  {name}")
    table.add_row("planned time", f"{summary.planned_ms / 1e3:,.2f} s in total")
    table.add_row("measured time", _measured(summary))
    table.add_row("wall-clock time", f"{summary.wall_ms / 1e3:,.2f} s in total, of all steps")
    table.add_row("planning", f"{summary.plan_ms:,.1f} ms in the median step")
    table.add_row(
        "ranks",
        f"wait for other stages {format_percent(summary.bubble)} of their replica's time; "
        f"the busiest computes {summary.imbalance:.2f} times the mean",
    )
    table.add_row(
        "transfers", f"{format_percent(summary.transfer_share)} of wall-clock time is exposed transfers"
    )
    table.add_row("process groups", f"{summary.groups_ms:,.0f} ms to create them, each on first use")
    table.add_row("memory", _memory(summary))
    table.add_row("best static strategy", _static(summary))
    if summary.ranks_per_device > 1:
        table.add_row("shared devices", shared_devices_note(summary.ranks_per_device))
    return table


def mfu(share: float | None) -> str:
    """Return the model FLOPs utilisation with trailing space; empty if unknown."""
    return "" if share is None else f"MFU {format_percent(share)}  "


def _evaluated(summary: RunSummary) -> str:
    first, last = summary.evaluations[0], summary.evaluations[-1]
    before = f"{first.loss:.3f} after step {first.step}, " if first != last else ""
    return f"{before}{last.loss:.3f} nats after step {last.step}"


def _measured(summary: RunSummary) -> str:
    measured = f"{summary.measured_ms / 1e3:,.2f} s in total"
    if summary.median_error is None:
        return measured
    return f"{measured}; median prediction error {format_percent(summary.median_error)}"


def _memory(summary: RunSummary) -> str:
    if summary.memory is None:
        return f"at most {mib(summary.memory_bytes)} MiB on a rank"
    memory = summary.memory
    return (
        f"at most {mib(memory.peak_bytes)} MiB on a rank, {mib(memory.planned_bytes)} planned; "
        f"median prediction error {format_percent(memory.median_error)}"
    )


def _static(summary: RunSummary) -> str:
    if not summary.static_steps:
        return (
            "not compared: planner.recalibrate or slow ranks changed the run's planned times, and no others"
        )
    if summary.static is None:
        return "none: no strategy of the list admits the longest sequence"
    ratio = summary.static.planned_ms / summary.static_planned_ms
    planned_s = summary.static.planned_ms / 1e3
    steps = f" for a sample of {summary.static_steps} steps"
    sample = steps if summary.static_steps < summary.steps else ""
    longer = f"{ratio:.2f} times as long as the run's plans{' of these' if sample else ''}"
    return f"{summary.static.strategy}: {planned_s:,.2f} s planned{sample}, {longer}"
