"""Floating-point operations of a training step, as utilisation counts them."""

from hydraulis.config.model import ModelConfig

# A multiplication and an addition; once forward, and for the gradients of inputs and of weights backward.
_PER_WEIGHT = 2 * 3


def training_flops(model: ModelConfig, tokens: int, squares: int) -> float:
    """Count the operations that forward and backward of some sequences need.

    Every matrix product of the model, the head's among them, is 6 operations for each weight and token.
    Attention's two products see half of a sequence's square, because a token attends to those before it:
    `6 layers heads head_dim s^2` for a sequence of `s` tokens. That is how "PaLM: Scaling Language Modeling
    with Pathways" (Chowdhery et al., 2022, appendix B) counts, but for the half and for packing: sequences
    packed together attend to themselves alone, so their squares are summed, and the sum is not squared. What
    is computed again (checkpointing, flash attention's backward) does not count, nor does padding; parameters
    that are frozen count as if they were trained.

    Args:
        model: the shape.
        tokens: of all sequences.
        squares: the sum of their squared lengths.
    """
    queries = model.num_attention_heads * model.head_dim
    keys = model.num_key_value_heads * model.head_dim
    attention = model.hidden_size * (2 * queries + 2 * keys)
    layer = attention + 3 * model.hidden_size * model.intermediate_size
    weights = model.num_hidden_layers * layer + model.hidden_size * model.vocab_size
    return _PER_WEIGHT * (float(weights) * tokens + float(model.num_hidden_layers * queries) * squares)
