"""Cuts a decoder down to what one pipeline stage holds."""

from hydraulis.errors import InvalidInputError
from hydraulis.model.decoder import Decoder


def cut_stage(model: Decoder, layers: range, *, first: bool, last: bool) -> None:
    """Remove from the model, in place, what the stage does not hold.

    Args:
        model: a decoder that still has these layers.
        layers: global indices of the stage's layers; they keep them as their names.
        first: whether the stage holds the embedding, and so takes tokens.
        last: whether the stage holds the final norm and the head, and so has a loss.

    Raises:
        InvalidInputError: the model lacks one of the layers (code `argument_invalid`).
    """
    kept = [str(index) for index in layers]
    missing = [name for name in kept if name not in model.layers]
    if missing:
        message = (
            f"layers = {layers} names layer {missing[0]}, but the model holds {', '.join(model.layers)}; "
            "cut a stage from a model that has its layers"
        )
        raise InvalidInputError(message, code="argument_invalid")
    for name in set(model.layers) - set(kept):
        del model.layers[name]
    if not first:
        model.embed_tokens = None
    if not last:
        model.norm = None
        model.lm_head = None
