"""A check that a model keeps packed sequences apart, by the logits of one after two others."""

from typing import Any, Final

import torch
from torch import Tensor, nn

from hydraulis.batching.collators.varlen import TransformersCollator
from hydraulis.errors import InvalidInputError

_TOKENS: Final = 4
# The most by which logits may change, relative to the largest one: a number, and units of their resolution.
# Dense models of transformers 5.23 that keep sequences apart change by 0, and experts by less than 2 units,
# because they sum in another order.
_MOST_CHANGE: Final = 1e-4
_MOST_UNITS: Final = 4


def check_packing(model: nn.Module) -> None:
    """Check that sequences of a packed micro-batch do not change each other's logits.

    The model computes a sequence twice, in evaluation mode and without gradients, after two different ones of
    the same size. Its mode stays as it is. The logits may change by 1e-4 of the largest one, or by 4 units of
    their type's resolution if that is more.

    Args:
        model: Causal model of transformers on the device and with the attention that it trains with, or a
            module that passes its arguments on to one.

    Raises:
        InvalidInputError: The logits of the sequence depend on the one before it, or the model is none of
            transformers, is on the device `meta`, or does not take packed sequences (code
            `model_unsupported`).
    """
    inner: Any = getattr(model, "module", model)
    _check_model(inner)
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            first, second = (_logits(model, inner, start) for start in (1, 1 + _TOKENS))
    finally:
        for module in training:
            module.training = True
    change = float((first - second).abs().max())
    relative = max(_MOST_CHANGE, _MOST_UNITS * torch.finfo(first.dtype).eps)
    most = relative * float(first.abs().max())
    if not change <= most:
        name = getattr(inner.config, "_attn_implementation", None)
        message = (
            f"{type(inner).__name__} with attn_implementation = '{name}' mixes packed sequences: "
            f"another sequence before it changed the logits of one by {change:.2g}, and rounding by at most "
            f"{most:.2g}; choose another attn_implementation, or train padded batches of this model"
        )
        raise InvalidInputError(message, code="model_unsupported")


def _check_model(inner: Any) -> None:
    """Refuse a model that the check cannot call."""
    if not (hasattr(inner, "get_input_embeddings") and hasattr(inner, "config")):
        message = f"check_packing takes a model of transformers, and {type(inner).__name__} is none; give one"
        raise InvalidInputError(message, code="model_unsupported")
    if any(parameter.is_meta for parameter in inner.parameters()):
        message = (
            f"{type(inner).__name__} has parameters on the device meta, without values: load its weights"
        )
        raise InvalidInputError(message, code="model_unsupported")


def _logits(model: nn.Module, inner: Any, start: int) -> Tensor:
    """Return the logits of the second of two sequences, whose first one counts from `start`."""
    table = inner.get_input_embeddings()
    sequences = torch.arange(start, start + _TOKENS), torch.arange(1 + 2 * _TOKENS, 1 + 3 * _TOKENS)
    samples = [{"input_ids": (tokens % table.num_embeddings).tolist()} for tokens in sequences]
    batch = {
        name: value.to(table.weight.device) if isinstance(value, Tensor) else value
        for name, value in TransformersCollator()(samples).items()
        if name != "labels"
    }
    try:
        logits: Tensor = model(**batch).logits[0, _TOKENS:]
    except (AttributeError, TypeError, ValueError) as error:
        message = (
            f"{type(inner).__name__} does not take packed sequences, which are {', '.join(batch)}: {error}; "
            "train padded batches of this model"
        )
        raise InvalidInputError(message, code="model_unsupported") from error
    return logits
