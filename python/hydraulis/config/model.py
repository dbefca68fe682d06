"""The shape of a decoder model, under the field names of a Hugging Face `config.json`."""

import math
from dataclasses import dataclass, replace
from typing import Literal, Self

from hydraulis.config.check import check_above, check_at_least
from hydraulis.config.lora import Adapters
from hydraulis.errors import InvalidInputError
from hydraulis.text.values import as_toml


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """A change of the rotary frequencies for longer contexts; it does not depend on the batch.

    A pair of dimensions turns by its frequency times the original context, in full circles.

    Attributes:
        rope_type: `linear` divides all frequencies by the factor, `llama3` only the low ones, `yarn` those
            of pairs that turn less than `beta_slow` times.
        factor: Ratio of the new context to the original one.
        original_max_position_embeddings: Original context in tokens; `linear` does not need it.
        low_freq_factor: Turns of `llama3` below which pairs are divided by the whole factor.
        high_freq_factor: Turns of `llama3` above which pairs stay unchanged.
        beta_fast: Turns of `yarn` above which pairs stay unchanged.
        beta_slow: Turns of `yarn` below which pairs are divided by the whole factor.
        attention_factor: Factor of queries and keys in `yarn`; absent for `0.1 ln(factor) + 1`.

    Raises:
        InvalidInputError: A field is out of its range (code `config_value`).
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
        check_at_least("rope_scaling.factor", self.factor, 1)
        check_above("rope_scaling.low_freq_factor", self.low_freq_factor, 0)
        check_above("rope_scaling.high_freq_factor", self.high_freq_factor, self.low_freq_factor)
        check_above("rope_scaling.beta_slow", self.beta_slow, 0)
        check_above("rope_scaling.beta_fast", self.beta_fast, self.beta_slow)
        if self.attention_factor is not None:
            check_above("rope_scaling.attention_factor", self.attention_factor, 0)
        if self.original_max_position_embeddings is not None:
            check_at_least(
                "rope_scaling.original_max_position_embeddings", self.original_max_position_embeddings, 1
            )
        elif self.rope_type != "linear":
            message = (
                "rope_scaling.original_max_position_embeddings is missing, and "
                f"rope_type = {self.rope_type!r} needs it; "
                "give the context in tokens that the model was first trained with"
            )
            raise InvalidInputError(message, code="config_value")


_COUNTS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)
MOST_LAYERS = 1 << 14
"""Limit of the planner."""
# With 16 bytes an element and `MOST_LAYERS` layers of 8 parameters, the bytes of a model are below 2^63.
_MOST_ELEMENTS = 1 << 40
_REALS = ("rope_theta", "rms_norm_eps", "initializer_range")
_SWITCHES = ("attention_bias", "attention_output_bias", "mlp_bias", "qk_norm", "tie_word_embeddings")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A Llama-type decoder: pre-norm, grouped-query attention with rotary positions, SwiGLU.

    Attributes:
        vocab_size: Rows of the embedding and of the head.
        hidden_size: Width of the residual stream.
        intermediate_size: Width inside the MLP.
        num_hidden_layers: Number of decoder layers.
        num_attention_heads: Number of query heads; a multiple of `num_key_value_heads`.
        num_key_value_heads: Number of key/value heads.
        head_dim: Width of one head, even; 0 or None for `hidden_size // num_attention_heads`.
        rope_theta: Base of the rotary frequencies.
        rope_scaling: Change of the rotary frequencies for longer contexts; None for no change.
        rms_norm_eps: Term added to the mean square in every norm.
        attention_bias: Whether the projections to queries, keys and values have biases.
        attention_output_bias: Whether the projection of the attention output has a bias.
        mlp_bias: Whether the three projections of the MLP have biases.
        qk_norm: Whether each query and key head is normalised before its rotation.
        tie_word_embeddings: Whether the head shares the embedding's weight.
        initializer_range: Standard deviation of the initial weights.
        sliding_window: Number of tokens that a token attends to, itself included; None for all before it.
            Attention here always covers whole sequences, so a run's sequences must not be longer than the
            window.
        adapters: Adapters of the linear maps, which the section `lora` sets; None to train the model itself.

    Raises:
        InvalidInputError: A field is out of its range (code `model_invalid`).
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int = 0
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tie_word_embeddings: bool = False
    initializer_range: float = 0.02
    sliding_window: int | None = None
    adapters: Adapters | None = None

    def __post_init__(self) -> None:
        for name in _COUNTS:
            _check_count(name, getattr(self, name))
        # After the counts: the default of head_dim divides by one of them.
        self._normalise()
        _check_count("head_dim", self.head_dim)
        if self.sliding_window is not None:
            _check_count("sliding_window", self.sliding_window)
        for name in _REALS:
            _check_real(name, getattr(self, name))
        for name in _SWITCHES:
            _check_switch(name, getattr(self, name))
        self._check_heads()
        self._check_size()
        self._check_rope_scaling()
        if not isinstance(self.adapters, Adapters | None):
            message = f"adapters = {self.adapters!r} must be Adapters or None"
            raise InvalidInputError(message, code="model_invalid")

    @property
    def base(self) -> Self:
        """The model without adapters."""
        return replace(self, adapters=None)

    def _normalise(self) -> None:
        if self.head_dim in (0, None):
            self._check_hidden_size()
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_attention_heads)
        for name in _REALS:
            value = getattr(self, name)
            if type(value) is int and abs(value) < _MOST_ELEMENTS:
                object.__setattr__(self, name, float(value))

    def _check_hidden_size(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            message = (
                f"hidden_size = {self.hidden_size} is not a multiple of num_attention_heads = "
                f"{self.num_attention_heads}; change one of them or give head_dim"
            )
            raise InvalidInputError(message, code="model_invalid")

    def _check_heads(self) -> None:
        if self.head_dim % 2:
            message = (
                f"head_dim = {self.head_dim} must be even, because rotary positions rotate pairs; "
                "choose an even head_dim"
            )
            raise InvalidInputError(message, code="model_invalid")
        if self.num_attention_heads % self.num_key_value_heads:
            message = (
                f"num_key_value_heads = {self.num_key_value_heads} must divide num_attention_heads = "
                f"{self.num_attention_heads}; choose a divisor"
            )
            raise InvalidInputError(message, code="model_invalid")

    def _check_size(self) -> None:
        """Refuse sizes at which byte counts overflow, before a table of the parameters is made."""
        if self.num_hidden_layers > MOST_LAYERS:
            layers = f"{self.num_hidden_layers:,}"
            message = f"num_hidden_layers = {layers} is beyond the limit of {MOST_LAYERS:,}; lower it"
            raise InvalidInputError(message, code="model_invalid")
        widths = {
            "vocab_size": self.vocab_size,
            "intermediate_size": self.intermediate_size,
            "num_attention_heads * head_dim": self.num_attention_heads * self.head_dim,
        }
        for name, width in widths.items():
            if width * self.hidden_size > _MOST_ELEMENTS:
                message = (
                    f"{name} * hidden_size = {as_toml(width * self.hidden_size)} elements of one parameter "
                    f"are beyond the limit of 2^{_MOST_ELEMENTS.bit_length() - 1}; lower one of them"
                )
                raise InvalidInputError(message, code="model_invalid")

    def _check_rope_scaling(self) -> None:
        if not isinstance(self.rope_scaling, RopeScaling | None):
            message = f"rope_scaling = {self.rope_scaling!r} must be a RopeScaling or None"
            raise InvalidInputError(message, code="model_invalid")


def _check_count(name: str, value: object) -> None:
    if type(value) is not int or value < 1:
        message = f"{name} = {as_toml(value)} must be a whole number of at least 1"
        raise InvalidInputError(message, code="model_invalid")


def _check_real(name: str, value: object) -> None:
    if type(value) is not float or not math.isfinite(value) or value <= 0.0:
        message = f"{name} = {as_toml(value)} must be a finite number above 0"
        raise InvalidInputError(message, code="model_invalid")


def _check_switch(name: str, value: object) -> None:
    if type(value) is not bool:
        message = f"{name} = {as_toml(value)} must be true or false"
        raise InvalidInputError(message, code="model_invalid")
