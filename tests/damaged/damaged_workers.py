"""Functions that the tests of damaged files run on ranks."""

import io
import json
import shutil
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

from damaged.damage import Damaged
from hydraulis.cli.main import main
from train.train_workers import run_commands


class Outcome(NamedTuple):
    """The use of a damaged run.

    Attributes:
        path: Path of the damaged file in the run's folder.
        codes: Exit codes of training and of the export.
        losses: Losses and gradient norms of the last two steps; none if the run was not resumed.
        text: Everything that was printed.
    """

    path: str
    codes: tuple[int, int]
    losses: list[tuple[float, float]]
    text: str


def train(arguments: Sequence[str]) -> None:
    """Train a run."""
    (ended,) = run_commands([arguments])
    assert ended.code == 0, ended


def use_damaged_runs(folder: Path, arguments: Sequence[str], seed: int, cases: int) -> list[Outcome]:
    """Resume and export a run, each time with another damaged file."""
    outcomes = []
    for run, path in Damaged(folder / "run", folder, seed, cases):
        name = str(path.relative_to(run))
        (ended,) = run_commands([[*arguments, "--resume", str(run)]])
        losses = read_losses(run) if ended.code == 0 else []
        output = folder / "model"
        exported, text = _run(["export", str(run), "--output", str(output)])
        shutil.rmtree(output, ignore_errors=True)
        text = f"{ended.out}{ended.err}{text}"
        outcomes.append(Outcome(name, (ended.code, exported), losses, text))
    return outcomes


def read_losses(run: Path) -> list[tuple[float, float]]:
    """Return the loss and the gradient norm of the last two steps."""
    lines = (run / "metrics.jsonl").read_text().splitlines()[-2:]
    return [(one["loss"], one["gradient_norm"]) for one in map(json.loads, lines)]


def _run(arguments: Sequence[str]) -> tuple[int, str]:
    text = io.StringIO()
    with redirect_stdout(text), redirect_stderr(text):
        try:
            code = main(arguments)
        except SystemExit as error:
            code = int(error.code or 0)
    return code, text.getvalue()
