"""Detects jumps of the loss and of the gradient's norm: values far above those of the last steps."""

import statistics
from collections import deque
from collections.abc import Sequence

from hydraulis.config.train import TrainConfig
from hydraulis.errors import HydraulisError
from hydraulis.runtime.ranks.every_rank import everywhere
from hydraulis.runtime.ranks.rank_zero import from_rank_zero
from hydraulis.runtime.records.resumed_records import read_lines
from hydraulis.runtime.records.run_directory import METRICS, RunDirectory
from hydraulis.text.documents import parse_json

# Steps that a value is compared with, and the fewest of them.
WINDOW = 32
_FEWEST = 8


class JumpDetector:
    """Compares each step's loss and gradient norm with their medians over the last `WINDOW` steps.

    Every rank has the same values, so every rank finds the same jumps.

    Args:
        config: Factors of a jump, and the reaction to one.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._limits = {"loss": config.loss_jump, "gradient norm": config.norm_jump}
        self._keys = {"loss": "train.loss_jump", "gradient norm": "train.norm_jump"}
        self._reaction = config.on_jump
        self._last: dict[str, deque[float]] = {name: deque(maxlen=WINDOW) for name in self._limits}

    def recall(self, losses: Sequence[float], norms: Sequence[float]) -> None:
        """Take the values of the steps before a resumed one."""
        for name, values in zip(self._last, (losses, norms), strict=True):
            self._last[name].extend(values)

    def find(self, step: int, loss: float, norm: float) -> str | None:
        """Take the values of a step, and describe its jumps; None without one.

        Raises:
            HydraulisError: The step has a jump, and `train.on_jump` is `stop` (code `training_jumped`); on
                every rank.
        """
        jumps = {
            name: f"the {name} jumped to {value:.4g}, above {limit:g} times the median {median:.4g} of the "
            f"{count} steps before"
            for name, value in (("loss", loss), ("gradient norm", norm))
            for limit, median, count in [self._limit_of(name)]
            if limit and value > limit * median
        }
        self._last["loss"].append(loss)
        self._last["gradient norm"].append(norm)
        if not jumps:
            return None
        found = f"step {step}: {' and '.join(jumps.values())}"
        if self._reaction == "stop":
            keys = " and ".join(self._keys[name] for name in jumps)
            message = (
                f"{found}; the step updated nothing: resume with a higher {keys}, with train.on_jump = "
                "'skip' or 'report', or from an earlier checkpoint with a lower optimizer.learning_rate"
            )
            raise everywhere(HydraulisError(message, code="training_jumped"))
        return f"{found}; its update is skipped" if self.skips else found

    @property
    def skips(self) -> bool:
        """Whether a step with a jump makes no update."""
        return self._reaction == "skip"

    def _limit_of(self, name: str) -> tuple[float, float, int]:
        """Return the factor of a jump, 0 while too few steps are known, with their median and number."""
        last = self._last[name]
        if len(last) < _FEWEST:
            return 0.0, 0.0, len(last)
        return self._limits[name], statistics.median(last), len(last)


def recall_jumps(detector: JumpDetector, directory: RunDirectory, completed: int) -> None:
    """Give the detector the recorded values of the last steps up to `completed`. Collective."""
    losses, norms = from_rank_zero(lambda: recorded_values(directory, completed))
    detector.recall(losses, norms)


def recorded_values(directory: RunDirectory, completed: int) -> tuple[list[float], list[float]]:
    """Return the recorded losses and gradient norms of the last steps; malformed lines are left out.

    Args:
        directory: The run's folder.
        completed: Last step to return.

    Raises:
        HydraulisError: The metrics cannot be read (code `file_unwritable`).
    """
    values = {step: pair for step, *pair in read_lines(directory, METRICS, _read_values) if step <= completed}
    last = sorted(values)[-WINDOW:]
    return [values[step][0] for step in last], [values[step][1] for step in last]


def _read_values(line: str) -> tuple[int, float, float]:
    entry = parse_json(line)
    return int(entry["step"]), float(entry["loss"]), float(entry["gradient_norm"])
