"""Which context degrees a model admits."""

from hydraulis._core import Scheme
from hydraulis.config.kinds import ContextKind
from hydraulis.config.model import ModelConfig
from hydraulis.errors import InvalidInputError


def check_context_degree(config: ModelConfig, scheme: Scheme, kind: ContextKind | None) -> None:
    """Check that a model's attention can be shared out over the context ranks of a scheme.

    Args:
        config: of the model; its heads are split over the scheme's tensor ranks already.
        scheme: any.
        kind: of context parallelism; None if the scheme has none.

    Raises:
        InvalidInputError: Ulysses would leave a rank without a query head (code `scheme_model_mismatch`).
    """
    heads = config.num_attention_heads // scheme.tp
    if kind == "ulysses" and scheme.cp > heads:
        message = (
            f"context degree cp = {scheme.cp} of scheme {scheme} is above its limit of {heads}, the query "
            "heads of a tensor rank (num_attention_heads / tp), which Ulysses assigns to ranks; choose a "
            "smaller degree, or ring attention"
        )
        raise InvalidInputError(message, code="scheme_model_mismatch")
