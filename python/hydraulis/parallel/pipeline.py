"""Pipeline parallelism: cuts a decoder down to one stage."""

from hydraulis.errors import InvalidInputError
from hydraulis.model.decoder import Decoder


def cut_stage(model: Decoder, layers: range, *, first: bool, last: bool) -> None:
    """Remove all modules outside one stage from the model, in place.

    Args:
        model: Decoder that still has the stage's layers.
        layers: Global indices of the stage's layers; the layers keep them as names.
        first: Whether the stage has the embedding, and so takes tokens.
        last: Whether the stage has the final norm and the head, and so returns a loss.

    Raises:
        InvalidInputError: The model lacks one of the layers (code `argument_invalid`).
    """
    names = [str(index) for index in layers]
    missing = [name for name in names if name not in model.layers]
    if missing:
        message = (
            f"layers = {layers} includes layer {missing[0]}, but the model has {', '.join(model.layers)}; "
            "cut the stage from a model with these layers"
        )
        raise InvalidInputError(message, code="argument_invalid")
    for name in set(model.layers) - set(names):
        del model.layers[name]
    if not first:
        model.embed_tokens = None
    if not last:
        model.norm = None
        model.lm_head = None
