"""The display of a training run: a live line on a terminal, plain lines in a file."""

from collections.abc import Mapping
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

from hydraulis.cli.tables.data_tables import left_out_counts
from hydraulis.cli.tables.run_files import describe_files
from hydraulis.cli.tables.summary_table import TIME_NOTES, mfu, summary_table
from hydraulis.cli.terminal.fitted import fitted
from hydraulis.cli.terminal.progress import Progress
from hydraulis.runtime.records.metrics import StepMetrics
from hydraulis.runtime.records.recorder import RunSummary
from hydraulis.text.values import format_percent
from hydraulis.train.observer import RunProgress, TrainingObserver

# Columns of a file's lines, which rich would wrap otherwise; wider than any row of the table.
FILE_WIDTH = 1000


class TrainingDisplay(TrainingObserver):
    """Shows a run's events on rank 0; silent on other ranks.

    Activities before the first step and after the last one are shown by `Progress`, as in every command.

    Args:
        rank: Rank of this process.
        json: Whether standard output is reserved for a JSON document, so that events go to standard error.
    """

    def __init__(self, rank: int, *, json: bool = False) -> None:
        self._console = Console(quiet=rank != 0, highlight=False, stderr=json)
        self._num_steps = 0
        self._shows = rank == 0
        self._live = self._console.is_terminal and self._shows
        if not self._live:
            self._console.width = FILE_WIDTH
        self._activity = Progress(out=not json)
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            _Times(),
            console=self._console,
        )
        # A line below the bar: on the same line it would push count and clock off an 80-column terminal.
        self._metrics = Text()
        self._screen = Live(Group(self._bars, self._metrics), console=self._console, transient=True)
        # The clock starts with the first step.
        self._training = self._bars.add_task("training", total=None, start=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._screen.stop()
        self._activity.stop()

    def status(self, activity: str) -> None:
        """Show the activity."""
        self._screen.stop()
        if self._shows:
            self._activity(activity)

    def message(self, text: str) -> None:
        """Print the message on a line of its own."""
        with self._activity.aside():
            self._console.print(text, soft_wrap=True, markup=False)

    def indexing(self, share: float) -> None:
        """Show the indexed share of the data."""
        if self._shows:
            self._activity.share("indexing")(share)

    def data(self, facts: Mapping[str, Any]) -> None:
        """Print the statistics of the data."""
        left_out = "".join(f"{one}, " for one in left_out_counts(facts))
        text = (
            f"data: {facts['documents']:,} documents, {facts['sequences']:,} sequences of "
            f"{facts['tokens']:,} tokens, {facts['targets']:,} of them targets; half "
            f"up to {facts['median']:,}, 99 % up to {facts['p99']:,}, longest {facts['longest']:,}; "
            f"{left_out}unigram entropy {facts['unigram_entropy_nats']:.2f} nats; "
            f"fingerprint {facts['fingerprint'][:12]}"
        )
        self.message(fitted(text, self._width()))

    def _width(self) -> int | None:
        return self._console.width if self._live else None

    def num_steps(self, num_steps: int) -> None:
        """Set the length of the progress bar."""
        self._num_steps = num_steps
        self._bars.update(self._training, total=num_steps)

    def measuring(self, share: float) -> None:
        """Show the completed share of the measurement."""
        if self._shows:
            self._activity.share("measuring")(share)

    def step(self, metrics: StepMetrics) -> None:
        """Show the step's metrics."""
        text = (
            f"loss {metrics.loss:.3f}  {metrics.tokens_per_s:,.0f} tokens/s  {mfu(metrics.mfu)}"
            f"{metrics.strategy}  planned {metrics.planned_ms:,.0f} ms  "
            f"measured {metrics.measured_ms:,.0f} ms  plan {metrics.plan_ms:,.1f} ms  "
            f"bubble {format_percent(metrics.bubble, 0)}  imbalance {metrics.imbalance:.2f}"
        )
        self._activity.stop()
        if self._live and not self._screen.is_started:
            self._screen.start()
        self._bars.start_task(self._training)
        self._bars.update(self._training, completed=metrics.step)
        self._metrics.plain = text
        if not self._live:
            self.message(f"step {metrics.step}/{self._num_steps}  {text}")

    def summary(self, summary: RunSummary, device: str) -> None:
        """Print the summary, the run directory's files, and the commands that read them."""
        self._activity.stop()
        self._console.print(summary_table(summary, self._num_steps))
        # Below the table, whose cells would break a long path.
        for note in TIME_NOTES[device]:
            self.message(fitted(note, self._width()))
        # Paths and commands stay whole, to be copied.
        for line in describe_files(summary):
            self.message(line)

    def stopped(self, progress: RunProgress) -> None:
        """Print the position on the last line, below which torchrun prints many of its own."""
        self._activity.stop()
        self.message(progress.after_stop())

    def failed(self, progress: RunProgress) -> None:
        """Print the position."""
        self._screen.stop()
        self.message(progress.after_failure())


class _Times(TimeRemainingColumn):
    """Elapsed time, and the remaining time once rich can estimate it."""

    def __init__(self) -> None:
        super().__init__()
        self._elapsed = TimeElapsedColumn()

    def render(self, task: Task) -> Text:
        """Return both, in the format of the other bars."""
        elapsed = self._elapsed.render(task)
        if task.time_remaining is None:
            return elapsed
        return Text.assemble(elapsed, ", ", super().render(task), " left")
