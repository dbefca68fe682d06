"""The section `optimizer`: the optimizer, its settings, and the schedule of its learning rate."""

import dataclasses
from typing import Any, Literal

from hydraulis.config.check import check_above, check_at_least, check_not_empty, check_within
from hydraulis.config.optimizer_kinds import MOMENTUM, OPTIMIZERS, why_refused
from hydraulis.errors import InvalidInputError
from hydraulis.text.values import as_toml, did_you_mean

Schedule = Literal["constant", "cosine", "linear", "wsd"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """The optimizer, weight decay, gradient clipping and the learning rate schedule.

    Attributes:
        name: Name of the optimizer, one of `OPTIMIZERS`.
        learning_rate: Learning rate after the warm-up.
        schedule: Course of the rate after the warm-up: `constant`; `cosine` or `linear` decay until the
            run's end; or `wsd` (warm-up, stable, decay), constant with a linear decay over the last
            `decay_steps`.
        warmup_steps: Number of iterations in which the rate grows linearly from 0.
        decay_steps: Number of iterations of the final decay of `wsd`.
        min_learning_rate: Learning rate at the end of the decay.
        betas: Decay rates of the two moments; of Lion, of its update and of its moment.
        eps: Term added to the divisor of the update.
        momentum: Decay rate of the momentum of `sgd` and `rmsprop`; 0 for none.
        nesterov: Whether the momentum of `sgd` is Nesterov's.
        alpha: Decay rate of the squares of `rmsprop`.
        weight_decay: Weight decay: decoupled from the gradient for `adamw`, `radam` and `lion`, added to the
            gradient for the others.
        no_decay: Patterns of parameters without weight decay, by their names in `model.safetensors`; by
            default norms, biases and the embedding.
        clip_norm: Maximum gradient norm over the whole model, to which larger gradients are scaled; 0 for no
            clipping.
    """

    name: str = "adamw"
    learning_rate: float = 3e-4
    schedule: Schedule = "constant"
    warmup_steps: int = 0
    decay_steps: int = 0
    min_learning_rate: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    momentum: float = 0.0
    nesterov: bool = False
    alpha: float = 0.99
    weight_decay: float = 0.1
    no_decay: tuple[str, ...] = ("*norm.weight", "*.bias", "model.embed_tokens.*")
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        _check_name(self.name)
        check_above("optimizer.learning_rate", self.learning_rate, 0)
        check_at_least("optimizer.warmup_steps", self.warmup_steps, 0)
        check_at_least("optimizer.decay_steps", self.decay_steps, 0)
        check_at_least("optimizer.min_learning_rate", self.min_learning_rate, 0)
        for i, beta in enumerate(self.betas):
            check_within(f"optimizer.betas[{i}]", beta, 0, 1)
        check_above("optimizer.eps", self.eps, 0)
        check_within("optimizer.momentum", self.momentum, 0, 1)
        check_within("optimizer.alpha", self.alpha, 0, 1)
        check_at_least("optimizer.weight_decay", self.weight_decay, 0)
        for i, pattern in enumerate(self.no_decay):
            check_not_empty(f"optimizer.no_decay[{i}]", pattern)
        check_at_least("optimizer.clip_norm", self.clip_norm, 0)
        self._check_settings()
        self._check_schedule()

    @property
    def moments(self) -> tuple[str, ...]:
        """State of each trained element, by the names of the optimizer's library."""
        return OPTIMIZERS[self.name].moments + ((MOMENTUM,) if self.momentum else ())

    def own_settings(self) -> dict[str, Any]:
        """Return the settings that belong to this optimizer and not to all."""
        return {key: getattr(self, key) for key in sorted(OPTIMIZERS[self.name].settings)}

    def _check_settings(self) -> None:
        own = OPTIMIZERS[self.name].settings
        for field in dataclasses.fields(self):
            value, users = getattr(self, field.name), _users_of(field.name)
            if users and field.name not in own and value != field.default:
                message = (
                    f"optimizer.{field.name} = {as_toml(value)} belongs to {', '.join(users)}, and "
                    f"optimizer.name = {self.name!r}: leave one of them out"
                )
                raise InvalidInputError(message, code="config_value")
        if self.nesterov and not self.momentum:
            message = "optimizer.nesterov = true needs optimizer.momentum above 0; set it, such as to 0.9"
            raise InvalidInputError(message, code="config_value")

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


def _users_of(setting: str) -> list[str]:
    """List the optimizers that a setting belongs to; none if it belongs to all of them."""
    return [name for name, kind in OPTIMIZERS.items() if setting in kind.settings]


def _check_name(name: str) -> None:
    if name in OPTIMIZERS:
        return
    choices = ", ".join(map(repr, OPTIMIZERS))
    reason = why_refused(name)
    cause = f"{name} {reason}; " if reason else ""
    near = "" if reason else did_you_mean(name, OPTIMIZERS)
    message = f"optimizer.name = {as_toml(name)} must be one of {choices}; {cause}choose one{near}"
    raise InvalidInputError(message, code="config_value")
