"""Floating-point operations of a training step, and the model FLOP utilisation (MFU) that follows."""

from dataclasses import dataclass

from hydraulis.config.model import ModelConfig
from hydraulis.model.parameters import is_adapter, parameter_rows

# A multiplication and an addition, in three products: forward, and backward for inputs and for weights.
_PER_WEIGHT = 2 * 3
# The base of adapters has no gradient of its weights.
_PER_BASE_WEIGHT = 2 * 2


def training_flops(model: ModelConfig, tokens: int, squares: int) -> float:
    """Count the operations of forward and backward.

    Every matrix product of the model, including the head's, is 6 operations per weight and token. Each of
    attention's two products covers half of a sequence's square, because a token attends only to earlier
    tokens: `6 layers heads head_dim s^2` for a sequence of `s` tokens. The count follows "PaLM: Scaling
    Language Modeling with Pathways" (Chowdhery et al., 2022, appendix B) with two differences: the half, and
    the sum of squares instead of the squared sum, because packed sequences attend to themselves only.
    Recomputation (checkpointing, flash attention's backward) and padding do not count. With adapters a weight
    of the base model is 4 operations instead. Parameters of `train.frozen` count like trained ones.

    Args:
        model: Shape of the model.
        tokens: Tokens of all sequences.
        squares: Sum of the squared lengths of the sequences.
    """
    queries = model.num_attention_heads * model.head_dim
    keys = model.num_key_value_heads * model.head_dim
    attention = model.hidden_size * (2 * queries + 2 * keys)
    layer = attention + 3 * model.hidden_size * model.intermediate_size
    weights = model.num_hidden_layers * layer + model.hidden_size * model.vocab_size
    of_attention = _PER_WEIGHT * float(model.num_hidden_layers * queries) * squares
    if model.adapters is None:
        return _PER_WEIGHT * float(weights) * tokens + of_attention
    rows = (row for row in parameter_rows(model) if is_adapter(row.name))
    adapters = model.num_hidden_layers * sum(row.rows * row.row_elements for row in rows)
    return float(_PER_BASE_WEIGHT * weights + _PER_WEIGHT * adapters) * tokens + of_attention


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Computes the share of the devices' peak FLOP/s that the model's operations use.

    Attributes:
        model: The model's configuration.
        ranks: Ranks of the cluster, including those without work.
        peak_tflops: Peak of one device, in TFLOP/s; None if it is not known.
        ranks_per_device: Ranks that share one device.
    """

    model: ModelConfig
    ranks: int
    peak_tflops: float | None
    ranks_per_device: int = 1

    def of(self, tokens: int, squares: int, wall_ms: float) -> float | None:
        """Return the MFU of a step, between 0 and 1; None if the peak is not known.

        Args:
            tokens: Tokens of the global batch, without padding.
            squares: Sum of the squared sequence lengths.
            wall_ms: Wall time of the step, in milliseconds.
        """
        if self.peak_tflops is None:
            return None
        flops = training_flops(self.model, tokens, squares)
        devices = self.ranks / self.ranks_per_device
        return flops / (1e-3 * wall_ms * devices * 1e12 * self.peak_tflops)
