"""What a training run shows: a live line on a terminal, plain lines anywhere else."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from hydraulis.cli.data_account import data_account
from hydraulis.cli.progress import Progress
from hydraulis.config.planner import MIB
from hydraulis.planner.percent import percent
from hydraulis.profile.served import served_until
from hydraulis.runtime.metrics import StepMetrics
from hydraulis.runtime.recorder import RunSummary
from hydraulis.runtime.run_directory import (
    ANALYSIS,
    CALIBRATIONS,
    CARRIED,
    CHECKPOINTS,
    CORPUS,
    EVALUATIONS,
    METRICS,
    PLANS,
    PROFILE,
    REPORT,
    RUN_CONFIG,
    TENSORBOARD,
    TIMES,
    TRACE,
    WANDB,
    WANDB_ID,
)

# By the kind of device.
TIME_NOTES = {
    "cpu": (
        "Planned and measured times are CPU time of the slowest replica, without transfers and optimizer. "
        "Ranks that share cores take turns on them, so the wall clock shows the work of all replicas "
        "together, not their balance. Memory is that of tensors, counted where tokens are more than before."
    ),
    "cuda": (
        "Planned and measured times are the devices', of the slowest replica, without transfers and "
        "optimizer. Memory is the allocator's peak."
    ),
}
# A file has no edge to wrap at; wide enough for any row of the table.
FILE_WIDTH = 1000


class TrainingDisplay:
    """The display of rank 0; on the other ranks it stays silent.

    What comes before the first step, and after the last, is told as any command tells it.

    Args:
        rank: of this process.
        json: whether standard output is kept for a document, so that all is shown on standard error.
    """

    def __init__(self, rank: int, *, json: bool = False) -> None:
        self._console = Console(quiet=rank != 0, highlight=False, stderr=json)
        self._num_steps = 0
        self._completed = 0
        self._shows = rank == 0
        self._live = self._console.is_terminal and self._shows
        if not self._live:
            self._console.width = FILE_WIDTH
        self._preparation = Progress(out=not json)
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
        )
        # A line of its own: beside the bar it would push count and clock off an 80-column terminal.
        self._status = Text()
        self._screen = Live(Group(self._bars, self._status), console=self._console, transient=True)
        self._training = self._bars.add_task("training", total=None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._screen.stop()
        self._preparation.stop()

    def num_steps(self, num_steps: int) -> None:
        """Say how many iterations the run has; before the first of them."""
        self._num_steps = num_steps
        self._bars.update(self._training, total=num_steps)

    def note(self, text: str) -> None:
        """Print a line that stays."""
        with self._preparation.aside():
            self._console.print(text, soft_wrap=True, markup=False)

    def doing(self, what: str) -> None:
        """Say what is being done before training, or after it."""
        self._screen.stop()
        if self._shows:
            self._preparation(what)

    def indexing(self, share: float) -> None:
        """Show how much of the data is indexed."""
        if self._shows:
            self._preparation.share("indexing")(share)

    def data(self, facts: Mapping[str, Any]) -> None:
        """Print what the sequences of a run are, as `Dataset.describe` gives it."""
        account = "".join(f"{told}, " for told in data_account(facts))
        self.note(
            f"data: {facts['documents']:,} documents, {facts['sequences']:,} sequences of "
            f"{facts['tokens']:,} tokens, {facts['targets']:,} of them targets; half "
            f"up to {facts['median']:,}, 99 % up to {facts['p99']:,}, longest {facts['longest']:,}; "
            f"{account}unigram entropy {facts['unigram_entropy_nats']:.2f} nats; "
            f"fingerprint {facts['fingerprint']}"
        )

    def measuring(self, share: float) -> None:
        """Show how much of the measurement is done."""
        if self._shows:
            self._preparation.share("measuring")(share)

    def step(self, metrics: StepMetrics) -> None:
        """Show an iteration."""
        status = (
            f"loss {metrics.loss:.3f}  {metrics.tokens_per_s:,.0f} tokens/s  {_mfu(metrics.mfu)}"
            f"{metrics.strategy}  planned {metrics.planned_ms:,.0f} ms  "
            f"measured {metrics.measured_ms:,.0f} ms  plan {metrics.plan_ms:,.1f} ms  "
            f"bubble {percent(metrics.bubble, 0)}  imbalance {metrics.imbalance:.2f}"
        )
        self._preparation.stop()
        self._completed = metrics.step
        if self._live and not self._screen.is_started:
            self._screen.start()
        self._bars.update(self._training, completed=self._completed)
        self._status.plain = status
        if not self._live:
            self.note(f"step {self._completed}/{self._num_steps}  {status}")

    def summary(self, summary: RunSummary, device: str) -> None:
        """Print the table at the end of a run on devices of this kind."""
        end = summary.first_step + summary.steps - 1
        stopped = "" if end == self._num_steps else f" (stopped after step {end} of {self._num_steps})"
        resumed = f" from step {summary.first_step} on" if summary.first_step > 1 else ""
        title = f"{summary.steps} iterations{resumed}, each planned anew{stopped}"
        table = Table(title=title, show_header=False, title_justify="left")
        table.add_row(
            "loss", f"{summary.first_loss:.3f} at the start, {summary.last_loss:.3f} nats at the end"
        )
        if summary.evaluations:
            first, last = summary.evaluations[0], summary.evaluations[-1]
            before = f"{first.loss:.3f} after step {first.step}, " if first != last else ""
            values = f"{before}{last.loss:.3f} nats after step {last.step}"
            table.add_row("loss on what is held out", values)
        table.add_row("speed", f"{summary.tokens_per_s:,.0f} tokens/s  {_mfu(summary.mfu)}".rstrip())
        for name, count in summary.strategies:
            table.add_row("chosen", f"{count:3d} x  {name}")
        table.add_row("planned time", f"{summary.planned_ms / 1e3:,.2f} s in all")
        table.add_row("measured time", _measured(summary))
        table.add_row("planning", f"{summary.plan_ms:,.1f} ms in the median step")
        table.add_row(
            "ranks",
            f"wait {percent(summary.bubble)} of their replica's time for other stages; "
            f"the busiest computes {summary.imbalance:.2f} times the mean",
        )
        table.add_row(
            "transfers",
            f"{percent(summary.transfer_share)} of the time on the wall is spent on them alone",
        )
        table.add_row("process groups", f"{summary.groups_ms:,.0f} ms to make them, each on first use")
        table.add_row("memory", _memory(summary))
        table.add_row("best static strategy", _static(summary))
        self._console.print(table)
        for path in summary.files:
            # Outside the table, whose cells would break a long path.
            self.note(f"{_meaning(path.name)}: {path}")
        self.note(f"as one page with figures: hydraulis report {shlex.quote(str(summary.directory))}")
        self.note(TIME_NOTES[device])

    def stopped(self, step: int, checkpoint: Path | None) -> None:
        """Say where a run was stopped and how it goes on, as the last line: torchrun adds many of its own.

        Args:
            step: so many iterations were completed.
            checkpoint: of them; None if this run trained no step.
        """
        if checkpoint is None:
            self.note(f"stopped after step {step} of {self._num_steps}; this run trained none")
            return
        self.note(f"stopped after step {step} of {self._num_steps}; checkpoint: {_and_on(checkpoint)}")

    def failed(self, standing: str) -> None:
        """Say where a run that failed stands; its error is told by others."""
        self._screen.stop()
        self.note(standing)

    def standing(self, first: int, newest: Path | None, every_steps: int | None) -> str:
        """Say where a run failed and how it goes on.

        Args:
            first: so many iterations were completed before this run.
            newest: complete checkpoint of it; None if there is none.
            every_steps: iterations from one checkpoint to the next; None if none is written on the way.
        """
        at = f"failed after step {max(first, self._completed)} of {self._num_steps}"
        none = "no checkpoint is complete: " + (
            "checkpoint.every_steps has some written on the way"
            if every_steps is None
            else f"none of checkpoint.every_steps = {every_steps} was written whole by then"
        )
        return f"{at}; {none if newest is None else f'newest checkpoint: {_and_on(newest)}'}"


def _and_on(checkpoint: Path) -> str:
    """Name a checkpoint, and how to go on from it."""
    run = shlex.quote(str(checkpoint.parents[1]))
    return f"{checkpoint}; to go on: the same command with --resume {run}"


FILE_MEANINGS = {
    METRICS: "metrics",
    PLANS: "plans",
    EVALUATIONS: "losses on what is held out",
    TIMES: "times of micro-batches",
    TRACE: "trace (open in Perfetto)",
    PROFILE: "cost profile",
    RUN_CONFIG: "configuration",
    CALIBRATIONS: "what was learnt of the schemes' times",
    CORPUS: "corpus statistics",
    CARRIED: "what came with the model",
    ANALYSIS: "lengths and batches of the data",
    REPORT: "report",
    TENSORBOARD: "for tensorboard --logdir",
    WANDB: "run of Weights & Biases",
    WANDB_ID: "its name there",
    CHECKPOINTS: "checkpoints (hydraulis export makes a model of one)",
}


def _meaning(name: str) -> str:
    step = served_until(name)
    return FILE_MEANINGS.get(name, "file") if step is None else f"cost profile until step {step}"


def _mfu(share: float | None) -> str:
    return "" if share is None else f"MFU {percent(share)}  "


def _measured(summary: RunSummary) -> str:
    measured = f"{summary.measured_ms / 1e3:,.2f} s in all"
    if summary.median_error is None:
        return measured
    return f"{measured}; the median iteration is off by {percent(summary.median_error)}"


def _memory(summary: RunSummary) -> str:
    if summary.memory is None:
        return f"at most {summary.memory_bytes / MIB:,.0f} MiB on a rank"
    memory = summary.memory
    return (
        f"at most {memory.held_bytes / MIB:,.0f} MiB on a rank, {memory.planned_bytes / MIB:,.0f} planned; "
        f"the median is off by {percent(memory.median_error)}"
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
