"""The optimizers by name: their state and their own settings.

Every rank updates flat pieces of parameters, so an optimizer must be elementwise: the update of an element
depends on its own gradient and state alone. `NOT_ELEMENTWISE` has the reasons why others are refused.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class OptimizerKind(NamedTuple):
    """An elementwise optimizer.

    Attributes:
        moments: State of each trained element, by the names of the optimizer's library.
        settings: Keys of the section `optimizer` that belong to some optimizers only, and to this one.
    """

    moments: tuple[str, ...]
    settings: frozenset[str]


# The state of an optimizer with a setting `momentum` above 0, beyond `OptimizerKind.moments`.
MOMENTUM: Final = "momentum_buffer"

_ADAM = frozenset({"betas", "eps"})
OPTIMIZERS: Final[Mapping[str, OptimizerKind]] = {
    "adamw": OptimizerKind(("exp_avg", "exp_avg_sq"), _ADAM),
    "adam": OptimizerKind(("exp_avg", "exp_avg_sq"), _ADAM),
    "adamax": OptimizerKind(("exp_avg", "exp_inf"), _ADAM),
    "radam": OptimizerKind(("exp_avg", "exp_avg_sq"), _ADAM),
    "adagrad": OptimizerKind(("sum",), frozenset({"eps"})),
    "rmsprop": OptimizerKind(("square_avg",), frozenset({"alpha", "eps", "momentum"})),
    "sgd": OptimizerKind((), frozenset({"momentum", "nesterov"})),
    "lion": OptimizerKind(("exp_avg",), frozenset({"betas"})),
}

_MATRICES = "orthogonalises or factors whole matrices, and each rank updates slices of them"
_NORMS = "scales each parameter by its norm, and each rank updates slices of parameters"
_GLOBAL = "needs numbers of the whole model besides each element's own state"
_BLOCKS = "compresses its state in blocks, which other numbers of ranks would cut elsewhere"
NOT_ELEMENTWISE: Final[Mapping[str, str]] = {
    "muon": _MATRICES,
    "shampoo": _MATRICES,
    "soap": _MATRICES,
    "adafactor": _MATRICES,
    "galore": _MATRICES,
    "lamb": _NORMS,
    "lars": _NORMS,
    "prodigy": _GLOBAL,
    "lbfgs": _GLOBAL,
    "nadam": _GLOBAL,
}
_NARROW: Final = ("8bit", "4bit", "fp8")


def why_refused(name: str) -> str | None:
    """Return the reason why an optimizer is refused, after its name; None if the name is unknown."""
    key = name.lower().replace("-", "_")
    is_narrow = any(part in key.replace("_", "") for part in _NARROW)
    return _BLOCKS if is_narrow else NOT_ELEMENTWISE.get(key)
