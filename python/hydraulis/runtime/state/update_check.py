"""The checks between a step's gradient and its update, which all ranks decide alike."""

from collections.abc import Callable
from dataclasses import dataclass

from hydraulis.errors import HydraulisError


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateCheck:
    """The conditions of an update.

    Attributes:
        error: Error of this rank, which stops the update on every rank; None without one.
        culprits: Function that names the ranks whose gradients are not finite, as the end of a message.
            Collective.
        accepts: Function of the gradient's norm that returns whether to update; the same on all ranks.
    """

    error: HydraulisError | None = None
    culprits: Callable[[], str] = lambda: ""
    accepts: Callable[[float], bool] = lambda _norm: True
