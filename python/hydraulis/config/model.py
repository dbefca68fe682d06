"""The shape of a decoder model, under the field names of a Hugging Face `config.json`."""

import math
from dataclasses import dataclass

from hydraulis.config.rope import RopeScaling
from hydraulis.errors import InvalidInputError
from hydraulis.text.values import written

_COUNTS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)
_REALS = ("rope_theta", "rms_norm_eps", "initializer_range")
_SWITCHES = ("attention_bias", "attention_output_bias", "mlp_bias", "qk_norm", "tie_word_embeddings")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A Llama-type decoder: pre-norm, grouped-query attention with rotary positions, SwiGLU.

    Attributes:
        vocab_size: rows of the embedding and of the head.
        hidden_size: width of the residual stream.
        intermediate_size: width inside the MLP.
        num_hidden_layers: decoder layers.
        num_attention_heads: query heads; a multiple of `num_key_value_heads`.
        num_key_value_heads: key/value heads.
        head_dim: width of one head, even; 0 or None means `hidden_size // num_attention_heads`.
        rope_theta: base of the rotary frequencies.
        rope_scaling: how the frequencies are changed for long contexts; absent for not at all.
        rms_norm_eps: added to the mean square inside every norm.
        attention_bias: whether the maps to queries, keys and values have biases.
        attention_output_bias: whether the map from attention's output has one.
        mlp_bias: whether the three maps of the MLP have biases.
        qk_norm: whether each query and key head is normalised, before it is turned.
        tie_word_embeddings: whether the head uses the embedding's weight.
        initializer_range: standard deviation of the initial weights.
        sliding_window: tokens that a token attends to, itself included; None for all before it. Attention
            sees whole sequences, so a run's may not be longer: then both are the same.

    Raises:
        InvalidInputError: a field is out of its range (code `model_config`).
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

    def __post_init__(self) -> None:
        for name in _COUNTS:
            _check_count(name, getattr(self, name))
        # Only now: the quotient means something once both numbers are positive.
        self._normalise()
        _check_count("head_dim", self.head_dim)
        if self.sliding_window is not None:
            _check_count("sliding_window", self.sliding_window)
        for name in _REALS:
            _check_real(name, getattr(self, name))
        for name in _SWITCHES:
            _check_switch(name, getattr(self, name))
        self._check_heads()
        self._check_rope_scaling()

    def _normalise(self) -> None:
        if self.head_dim in (0, None):
            self._check_hidden_size()
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_attention_heads)
        for name in _REALS:
            value = getattr(self, name)
            if type(value) is int:
                object.__setattr__(self, name, float(value))

    def _check_hidden_size(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            message = (
                f"hidden_size = {self.hidden_size} is not a multiple of num_attention_heads = "
                f"{self.num_attention_heads}; change one of them or give head_dim"
            )
            raise InvalidInputError(message, code="model_config")

    def _check_heads(self) -> None:
        if self.head_dim % 2:
            message = (
                f"head_dim = {self.head_dim} must be even, because rotary positions turn pairs; "
                "choose an even head_dim"
            )
            raise InvalidInputError(message, code="model_config")
        if self.num_attention_heads % self.num_key_value_heads:
            message = (
                f"num_key_value_heads = {self.num_key_value_heads} must divide num_attention_heads = "
                f"{self.num_attention_heads}; choose a divisor"
            )
            raise InvalidInputError(message, code="model_config")

    def _check_rope_scaling(self) -> None:
        if not isinstance(self.rope_scaling, RopeScaling | None):
            message = f"rope_scaling = {self.rope_scaling!r} must be a RopeScaling or None; give one"
            raise InvalidInputError(message, code="model_config")


def _check_count(name: str, value: object) -> None:
    if type(value) is not int or value < 1:
        message = f"{name} = {written(value)} must be a whole number of at least 1; give a positive integer"
        raise InvalidInputError(message, code="model_config")


def _check_real(name: str, value: object) -> None:
    if type(value) is not float or not math.isfinite(value) or value <= 0.0:
        message = f"{name} = {written(value)} must be a finite number above 0; give a positive number"
        raise InvalidInputError(message, code="model_config")


def _check_switch(name: str, value: object) -> None:
    if type(value) is not bool:
        message = f"{name} = {written(value)} must be true or false; give one"
        raise InvalidInputError(message, code="model_config")
