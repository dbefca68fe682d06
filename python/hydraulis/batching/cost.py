"""The relative time of a sequence: a linear and a quadratic term in its tokens.

Balancing needs ratios alone, so the unit may be milliseconds, floating-point operations or anything else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from hydraulis._core import CostProfile, Scheme
from hydraulis.errors import InvalidInputError
from hydraulis.model.flops import training_flops
from hydraulis.planner.profile_document import fitted_times


@dataclass(frozen=True, slots=True)
class SequenceCost:
    """Time of a sequence of `s` tokens: `quadratic s^2 + linear s`; of a micro-batch: the sum, and `fixed`.

    Attributes:
        linear: Time per token, at least 0.
        quadratic: Time per squared token, at least 0.
        fixed: Time of a micro-batch besides its sequences, at least 0.

    >>> cost = SequenceCost(linear=24_576, quadratic=1)
    >>> cost.times([100, 10_000]).tolist()
    [2467600.0, 345760000.0]
    """

    linear: float
    quadratic: float
    fixed: float = 0.0

    def __post_init__(self) -> None:
        for name in ("linear", "quadratic", "fixed"):
            value = getattr(self, name)
            if not isinstance(value, Real):
                message = f"cost.{name} is {value!r}: it must be a number; correct it"
                raise InvalidInputError(message, code="argument_invalid")
            # A number of NumPy would make a state unreadable to torch.load.
            object.__setattr__(self, name, float(value))
            if not 0 <= float(value) < float("inf"):
                message = f"cost.{name} is {value}: it must be finite and at least 0; correct it"
                raise InvalidInputError(message, code="argument_invalid")
        if self.linear == self.quadratic == 0:
            message = "cost.linear and cost.quadratic are 0: at least one must be positive; correct it"
            raise InvalidInputError(message, code="argument_invalid")

    @classmethod
    def of_profile(cls, profile: CostProfile, scheme: str | None = None) -> Self:
        """Take the coefficients of a cost profile, in ms; its least time of a micro-batch is left out.

        Args:
            profile: Cost profile.
            scheme: Scheme of the replicas, such as `<tp2>`; None for the profile's first one.

        Raises:
            InvalidInputError: The profile has no such scheme (code `scheme_unknown`).
        """
        chosen = Scheme(profile.schemes[0] if scheme is None else scheme)
        # Refuses a scheme that the profile lacks.
        profile.micro_batch_ms(chosen, [1])
        (times,) = (one for one in fitted_times(profile) if one.scheme == chosen)
        return cls(times.linear_ms_per_token, times.quadratic_ms_per_token2, times.fixed_ms)

    @classmethod
    def of_model(cls, config: object) -> Self:
        """Count the operations of forward and backward of a model, as `hydraulis.model.flops` does.

        Args:
            config: A Hugging Face configuration, the dictionary of a `config.json`, or another object with
                its fields. Of a mixture of experts, the experts of one token count.

        Raises:
            InvalidInputError: A field is missing (code `model_invalid`).
        """
        size: Any = _model_size(config)
        return cls(training_flops(size, tokens=1, squares=0), training_flops(size, tokens=0, squares=1))

    @classmethod
    def of(cls, value: "SequenceCost | CostProfile | tuple[float, float] | object") -> "SequenceCost":
        """Convert the cost of a sampler: a cost, a profile, two numbers, or a model's configuration.

        Raises:
            InvalidInputError: It is none of these (code `argument_invalid` or `model_invalid`).
        """
        match value:
            case SequenceCost():
                return value
            case CostProfile():
                return cls.of_profile(value)
            case (Real() as linear, Real() as quadratic):
                return cls(float(linear), float(quadratic))
            case None | str() | Real() | tuple() | list():
                message = (
                    f"cost is {value!r}: give (linear, quadratic), a SequenceCost, a cost profile or the "
                    "configuration of a model"
                )
                raise InvalidInputError(message, code="argument_invalid")
            case _:
                return cls.of_model(value)

    def times(self, lengths: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return the time of each sequence.

        Args:
            lengths: Tokens of each sequence, [n].
        """
        tokens = np.asarray(lengths, dtype=np.float64)
        times: npt.NDArray[np.float64] = tokens * (self.linear + self.quadratic * tokens)
        return times


def _model_size(config: object) -> SimpleNamespace:
    heads = _field(config, "num_attention_heads")
    hidden = _field(config, "hidden_size")
    experts = _field(config, "num_experts_per_tok", 0)
    expert = _field(config, "moe_intermediate_size", 0) or _field(config, "intermediate_size")
    return SimpleNamespace(
        hidden_size=hidden,
        intermediate_size=experts * expert if experts else _field(config, "intermediate_size"),
        num_hidden_layers=_field(config, "num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=_field(config, "num_key_value_heads", 0) or heads,
        head_dim=_field(config, "head_dim", 0) or hidden // heads,
        vocab_size=_field(config, "vocab_size"),
        adapters=None,
    )


def _field(config: object, name: str, default: int | None = None) -> int:
    value = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or value < 1:
        message = (
            f"{name} of the model's configuration is {value!r}: a whole number of at least 1 is needed; "
            "give a configuration with text fields, or the cost as (linear, quadratic)"
        )
        raise InvalidInputError(message, code="model_invalid")
    return value
