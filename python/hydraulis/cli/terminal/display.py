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
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.text import Text

from hydraulis.cli.tables.data_account import data_account
from hydraulis.cli.tables.run_files import what_is_left
from hydraulis.cli.tables.summary_table import TIME_NOTES, mfu, summary_table
from hydraulis.cli.terminal.progress import Progress
from hydraulis.runtime.records.metrics import StepMetrics
from hydraulis.runtime.records.recorder import RunSummary
from hydraulis.text.numbers import format_percent

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
            _Times(),
            console=self._console,
        )
        # A line of its own: beside the bar it would push count and clock off an 80-column terminal.
        self._status = Text()
        self._screen = Live(Group(self._bars, self._status), console=self._console, transient=True)
        # Its clock begins with the first step: what comes before has a bar of its own.
        self._training = self._bars.add_task("training", total=None, start=False)

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
            f"loss {metrics.loss:.3f}  {metrics.tokens_per_s:,.0f} tokens/s  {mfu(metrics.mfu)}"
            f"{metrics.strategy}  planned {metrics.planned_ms:,.0f} ms  "
            f"measured {metrics.measured_ms:,.0f} ms  plan {metrics.plan_ms:,.1f} ms  "
            f"bubble {format_percent(metrics.bubble, 0)}  imbalance {metrics.imbalance:.2f}"
        )
        self._preparation.stop()
        self._completed = metrics.step
        if self._live and not self._screen.is_started:
            self._screen.start()
        self._bars.start_task(self._training)
        self._bars.update(self._training, completed=self._completed)
        self._status.plain = status
        if not self._live:
            self.note(f"step {self._completed}/{self._num_steps}  {status}")

    def summary(self, summary: RunSummary, device: str) -> None:
        """Print what a run on devices of this kind comes to, what it left, and what to do with it."""
        self._console.print(summary_table(summary, self._num_steps))
        # Outside the table, whose cells would break a long path.
        for line in (*TIME_NOTES[device], *what_is_left(summary)):
            self.note(line)

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


class _Times(TimeRemainingColumn):
    """How long it has been going on, and how long it will, once that is known: as the other bars say it."""

    def __init__(self) -> None:
        super().__init__()
        self._elapsed = TimeElapsedColumn()

    def render(self, task: Task) -> Text:
        """Show both."""
        elapsed = self._elapsed.render(task)
        if task.time_remaining is None:
            return elapsed
        return Text.assemble(elapsed, ", ", super().render(task), " left")


def _and_on(checkpoint: Path) -> str:
    """Name a checkpoint, and how to go on from it."""
    run = shlex.quote(str(checkpoint.parents[1]))
    return f"{checkpoint}; to go on: the same command with --resume {run}"
