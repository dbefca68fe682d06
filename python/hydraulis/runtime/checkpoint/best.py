"""The checkpoint of a run with the lowest loss on held-out data."""

from pathlib import Path

from hydraulis.errors import InvalidInputError
from hydraulis.files import is_regular_file, unreadable_error
from hydraulis.runtime.checkpoint.folder import CheckpointFolder, newest_checkpoint, step_of
from hydraulis.runtime.records.evaluation import Evaluation, of_newest_data
from hydraulis.runtime.records.resumed_records import read_record
from hydraulis.runtime.records.run_directory import EVALUATIONS


def best_checkpoint(folder: CheckpointFolder) -> Path | None:
    """Return the complete checkpoint with the lowest evaluation loss, of equal ones the newest.

    Checkpoints after whose step no evaluation was made do not count, nor do those that were evaluated on
    other data than the last evaluation.

    Args:
        folder: Checkpoints of a run.

    Returns:
        The checkpoint; None without one.
    """
    losses = _losses(folder.path.parent / EVALUATIONS)
    evaluated = [(losses[step], path) for path in folder.complete() if (step := step_of(path)) in losses]
    return min(reversed(evaluated), key=lambda one: one[0], default=(0.0, None))[1]


def best_of_run(run: Path) -> Path:
    """Return the best checkpoint of a run's folder.

    Raises:
        InvalidInputError: The run has no complete checkpoint, or none was evaluated (code
            `checkpoint_missing`).
    """
    newest_checkpoint(run, "")
    best = best_checkpoint(CheckpointFolder.of_run(run))
    if best is None:
        message = (
            f"no checkpoint of {run} has an evaluation after its step: leave out --best, or train with "
            "train.evaluate_every and checkpoint.keep_best"
        )
        raise InvalidInputError(message, code="checkpoint_missing")
    return best


def _losses(path: Path) -> dict[int | None, float]:
    """Return the losses on the data of the last evaluation, by step; of a repeated step the last one."""
    try:
        lines = path.read_bytes().splitlines() if is_regular_file(path) else []
    except OSError as error:
        raise unreadable_error(path, error) from error
    read = (read_record(line, Evaluation.from_json) for line in lines)
    evaluations = [one for one in read if one is not None]
    return {one.step: one.loss for one in of_newest_data(evaluations)}
