"""The section `optimizer`."""

import dataclasses

from hydraulis.config.check import above, at_least, below


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW and its warm-up.

    Attributes:
        learning_rate: the rate after the warm-up.
        warmup_steps: the number of iterations over which the rate grows linearly from 0.
        betas: the decay rates of the two moments.
        eps: added to the root of the second moment.
        weight_decay: decoupled from the gradient.
    """

    learning_rate: float = 3e-4
    warmup_steps: int = 0
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1

    def __post_init__(self) -> None:
        above("optimizer.learning_rate", self.learning_rate, 0)
        at_least("optimizer.warmup_steps", self.warmup_steps, 0)
        for i, beta in enumerate(self.betas):
            at_least(f"optimizer.betas[{i}]", beta, 0)
            below(f"optimizer.betas[{i}]", beta, 1)
        above("optimizer.eps", self.eps, 0)
        at_least("optimizer.weight_decay", self.weight_decay, 0)
