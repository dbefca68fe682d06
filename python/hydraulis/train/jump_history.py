"""The losses and gradient norms before a resumed step, which its jumps are measured by."""

import json
from pathlib import Path

from hydraulis.runtime.jumps import WINDOW, JumpDetector
from hydraulis.runtime.ranks.rank_zero import from_rank_zero
from hydraulis.runtime.records.run_directory import METRICS


def recall_jumps(detector: JumpDetector, directory: Path, completed: int) -> None:
    """Give the detector the recorded values of the last steps up to `completed`. Collective."""
    losses, norms = json.loads(
        from_rank_zero(lambda: json.dumps(read_values(directory / METRICS, completed)))
    )
    detector.recall(losses, norms)


def read_values(metrics: Path, completed: int) -> tuple[list[float], list[float]]:
    """Return the losses and gradient norms of the last steps; malformed lines are left out.

    Args:
        metrics: File of the run's metrics.
        completed: Last step to return.
    """
    values: dict[int, tuple[float, float]] = {}
    try:
        lines = metrics.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        try:
            entry = json.loads(line)
            values[int(entry["step"])] = float(entry["loss"]), float(entry["gradient_norm"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    last = [step for step in sorted(values) if step <= completed][-WINDOW:]
    return [values[step][0] for step in last], [values[step][1] for step in last]
