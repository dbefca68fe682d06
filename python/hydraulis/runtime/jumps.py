"""Detects jumps of the loss and of the gradient's norm: values far above those of the last steps."""

import statistics
from collections import deque
from collections.abc import Sequence

from hydraulis.config.train import TrainConfig
from hydraulis.errors import HydraulisError
from hydraulis.runtime.ranks.every_rank import everywhere

# Steps that a value is compared with, and the fewest of them.
WINDOW = 32
_FEWEST = 8


class JumpDetector:
    """Compares each step's loss and gradient norm with their medians over the last `WINDOW` steps.

    Every rank has the same values, so every rank finds the same jumps.

    Args:
        config: Factors of a jump, and the reaction to one.

    Attributes:
        found: Description of the last step's jumps; None without one.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._limits = {"loss": config.loss_jump, "gradient norm": config.norm_jump}
        self._reaction = config.on_jump
        self._last: dict[str, deque[float]] = {name: deque(maxlen=WINDOW) for name in self._limits}
        self.found: str | None = None

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
        jumps = [
            f"the {name} jumped to {value:.4g}, above {limit:g} times the median {median:.4g} of the "
            f"{count} steps before"
            for name, value in (("loss", loss), ("gradient norm", norm))
            for limit, median, count in [self._limit_of(name)]
            if limit and value > limit * median
        ]
        self._last["loss"].append(loss)
        self._last["gradient norm"].append(norm)
        if not jumps:
            return None
        found = f"step {step}: {' and '.join(jumps)}"
        if self._reaction == "stop":
            message = (
                f"{found}; the step updated nothing: resume from the last checkpoint with a lower "
                "optimizer.learning_rate, or with train.on_jump = 'skip' or 'report'"
            )
            raise everywhere(HydraulisError(message, code="training_jumped"))
        return f"{found}; its update is skipped" if self.skips else found

    def accepts(self, step: int, loss: float, norm: float) -> bool:
        """Take the values of a step, and return whether it makes an update; raises as `find`."""
        self.found = self.find(step, loss, norm)
        return not (self.found and self.skips)

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
