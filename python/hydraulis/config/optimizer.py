"""The section `optimizer`: AdamW and its schedule."""

import dataclasses
from typing import Literal

from hydraulis.config.check import check_above, check_at_least, check_not_empty, check_within
from hydraulis.errors import InvalidInputError

Schedule = Literal["constant", "cosine", "linear", "wsd"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW, weight decay, gradient clipping and the learning rate schedule.

    Attributes:
        learning_rate: Learning rate after the warm-up.
        schedule: Course of the rate after the warm-up: `constant`; `cosine` or `linear` decay until the
            run's end; or `wsd` (warm-up, stable, decay), constant with a linear decay over the last
            `decay_steps`.
        warmup_steps: Number of iterations in which the rate grows linearly from 0.
        decay_steps: Number of iterations of the final decay of `wsd`.
        min_learning_rate: Learning rate at the end of the decay.
        betas: Decay rates of the two moments.
        eps: Term added to the root of the second moment.
        weight_decay: Weight decay, decoupled from the gradient.
        no_decay: Patterns of parameters without weight decay, by their names in `model.safetensors`; by
            default norms, biases and the embedding.
        clip_norm: Maximum gradient norm over the whole model, to which larger gradients are scaled; 0 for no
            clipping.
    """

    learning_rate: float = 3e-4
    schedule: Schedule = "constant"
    warmup_steps: int = 0
    decay_steps: int = 0
    min_learning_rate: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    no_decay: tuple[str, ...] = ("*norm.weight", "*.bias", "model.embed_tokens.*")
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        check_above("optimizer.learning_rate", self.learning_rate, 0)
        check_at_least("optimizer.warmup_steps", self.warmup_steps, 0)
        check_at_least("optimizer.decay_steps", self.decay_steps, 0)
        check_at_least("optimizer.min_learning_rate", self.min_learning_rate, 0)
        for i, beta in enumerate(self.betas):
            check_within(f"optimizer.betas[{i}]", beta, 0, 1)
        check_above("optimizer.eps", self.eps, 0)
        check_at_least("optimizer.weight_decay", self.weight_decay, 0)
        for i, pattern in enumerate(self.no_decay):
            check_not_empty(f"optimizer.no_decay[{i}]", pattern)
        check_at_least("optimizer.clip_norm", self.clip_norm, 0)
        self._check_schedule()

    def _check_schedule(self) -> None:
        if self.min_learning_rate > self.learning_rate:
            message = (
                f"optimizer.min_learning_rate = {self.min_learning_rate!r} must be at most "
                f"optimizer.learning_rate = {self.learning_rate!r}; lower it"
            )
            raise InvalidInputError(message, code="config_value")
        if self.schedule == "wsd" and not self.decay_steps:
            message = (
                "optimizer.schedule = 'wsd' decays over the last optimizer.decay_steps iterations, and "
                "optimizer.decay_steps = 0: set it to at least 1"
            )
            raise InvalidInputError(message, code="config_value")
        if self.schedule != "wsd" and self.decay_steps:
            message = (
                f"optimizer.decay_steps = {self.decay_steps} belongs to the schedule 'wsd', and "
                f"optimizer.schedule = {self.schedule!r}: leave one of them out"
            )
            raise InvalidInputError(message, code="config_value")
