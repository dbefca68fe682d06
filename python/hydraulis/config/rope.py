"""How the rotary frequencies of a decoder were stretched to longer contexts, in the names of Hugging Face."""

from dataclasses import dataclass
from typing import Literal

from hydraulis.config.check import above, at_least
from hydraulis.errors import InvalidInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """One way to change the rotary frequencies; none of them depends on the sequences at hand.

    Attributes:
        rope_type: `linear` divides all frequencies by the factor; `llama3` only those that turn less than
            once or so in the original context; `yarn` those that turn less than `beta_slow` times.
        factor: how many times longer the context became.
        original_max_position_embeddings: tokens of the context before; `linear` does not need it.
        low_freq_factor: of `llama3`: a pair that turns less often than this is slowed by the whole factor.
        high_freq_factor: of `llama3`: a pair that turns more often than this is left alone.
        beta_fast: of `yarn`: a pair that turns more often than this is left alone.
        beta_slow: of `yarn`: a pair that turns less often than this is slowed by the whole factor.
        attention_factor: of `yarn`: scales queries and keys; absent for `0.1 ln(factor) + 1`.

    Raises:
        InvalidInputError: a field is out of its range (code `config_value`).
    """

    rope_type: Literal["linear", "llama3", "yarn"]
    factor: float
    original_max_position_embeddings: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        at_least("rope_scaling.factor", self.factor, 1)
        above("rope_scaling.low_freq_factor", self.low_freq_factor, 0)
        above("rope_scaling.high_freq_factor", self.high_freq_factor, self.low_freq_factor)
        above("rope_scaling.beta_slow", self.beta_slow, 0)
        above("rope_scaling.beta_fast", self.beta_fast, self.beta_slow)
        if self.attention_factor is not None:
            above("rope_scaling.attention_factor", self.attention_factor, 0)
        if self.original_max_position_embeddings is not None:
            at_least(
                "rope_scaling.original_max_position_embeddings", self.original_max_position_embeddings, 1
            )
        elif self.rope_type != "linear":
            message = (
                "rope_scaling.original_max_position_embeddings is missing, and "
                f"rope_type = {self.rope_type!r} needs it; "
                "give the tokens of the context that the model was trained with before"
            )
            raise InvalidInputError(message, code="config_value")
