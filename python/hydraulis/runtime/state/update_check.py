"""The checks between a step's gradient and its update, which all ranks decide alike."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateCheck:
    """The conditions of an update.

    Attributes:
        culprits: Function that names the ranks whose gradients are not finite, as the end of a message.
            Collective.
        accepts: Function of the gradient's norm that returns whether to update; the same on all ranks.
    """

    culprits: Callable[[], str] = lambda: ""
    accepts: Callable[[float], bool] = lambda _norm: True
