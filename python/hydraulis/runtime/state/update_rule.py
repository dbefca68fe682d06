"""The optimizers of torch and of pytorch_optimizer by name, over flat leaves with flat state.

torch's fused kernels update a leaf of any size without temporary memory. The other optimizers are loops of
tensor operations, whose temporaries are as large as a leaf, so their leaves are small.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from hydraulis.config.optimizer import OptimizerConfig
from hydraulis.extras import import_extra

# Elements of a leaf of an optimizer that is a loop, and the most temporaries of its size: 64 MiB in float32.
_LOOP_LEAF = 1 << 22
_TEMPORARIES = 4
_FUSED: Final[Mapping[str, Callable[..., torch.optim.Optimizer]]] = {
    # For 20 M parameters on the CPU the fused kernel takes 12.7 ms on one flat tensor and 15.3 ms on 400,
    # foreach 86 ms and a loop 125 ms.
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
}
_LOOPS: Final[Mapping[str, Callable[..., torch.optim.Optimizer]]] = {
    "adamax": torch.optim.Adamax,
    "adagrad": torch.optim.Adagrad,
    "radam": torch.optim.RAdam,
    "rmsprop": torch.optim.RMSprop,
}


class DecaySpan(NamedTuple):
    """Consecutive elements of a flat buffer with the same weight decay.

    Attributes:
        start: First element.
        end: One past the last element.
        decayed: Whether weight decay applies.
    """

    start: int
    end: int
    decayed: bool


class UpdateRule:
    """An optimizer over views of flat buffers, which every step updates in place.

    Args:
        master: Flat parameters.
        gradient: Their flat gradient.
        moments: The optimizer's flat state, by the names of its library.
        spans: Spans of equal weight decay, which together cover all elements.
        config: The optimizer and its settings.

    Raises:
        HydraulisError: The library of the optimizer is not installed (code `extra_missing`).
    """

    def __init__(
        self,
        master: Tensor,
        gradient: Tensor,
        moments: Mapping[str, Tensor],
        spans: Sequence[DecaySpan],
        config: OptimizerConfig,
    ) -> None:
        is_fused = config.name in _FUSED
        spans = list(spans if is_fused else _split(spans))
        leaves = [nn.Parameter(master[span.start : span.end]) for span in spans]
        groups = [_group(leaves, spans, config, decayed=decayed) for decayed in (True, False)]
        self._optimizer = _optimizer(groups, config)
        largest = max((leaf.nbytes for leaf in leaves), default=0)
        self._temporary_bytes = 0 if is_fused else _TEMPORARIES * largest
        self._gradient = gradient
        # Fused kernels take the divisor of gradients as a float32 number on the device.
        self._divides = is_fused and gradient.dtype == torch.float32
        # Loops read the number of steps on the host.
        device = master.device if is_fused else torch.device("cpu")
        self._counters = [torch.zeros((), device=device) for _ in spans]
        for leaf, span, counter in zip(leaves, spans, self._counters, strict=True):
            leaf.grad = gradient[span.start : span.end]
            # Optimizers make the state of a leaf without one at its first step.
            of_leaf = {name: moment[span.start : span.end] for name, moment in moments.items()}
            self._optimizer.state[leaf] = {"step": counter, **of_leaf}

    @property
    def temporary_bytes(self) -> int:
        """The most bytes of temporaries in a step; 0 for a fused kernel."""
        return self._temporary_bytes

    def step(self, learning_rate: float, factor: float = 1.0) -> None:
        """Update the parameters and the state.

        Args:
            learning_rate: Learning rate of the step.
            factor: Factor of the gradient, above 0. Fused kernels apply it, without a pass over the gradient.
        """
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        if factor != 1.0 and not self._divides:
            self._gradient *= factor
        elif factor != 1.0:
            divisor = torch.full((), 1.0 / factor, device=self._gradient.device)
            # Where torch's gradient scaler leaves its scale for the fused kernels.
            vars(self._optimizer)["grad_scale"] = divisor
        self._optimizer.step()
        vars(self._optimizer).pop("grad_scale", None)

    def resume(self, num_steps: int) -> None:
        """Continue after `num_steps` iterations."""
        for counter in self._counters:
            counter.fill_(num_steps)


def require_optimizer(config: OptimizerConfig) -> None:
    """Check that the library of the optimizer is installed.

    Raises:
        HydraulisError: It is not (code `extra_missing`).
    """
    if config.name not in _FUSED.keys() | _LOOPS.keys():
        _lion()


def _optimizer(groups: list[dict[str, Any]], config: OptimizerConfig) -> torch.optim.Optimizer:
    settings = config.own_settings()
    if config.name in _FUSED:
        return _FUSED[config.name](groups, fused=True, **settings)
    if config.name == "radam":
        settings["decoupled_weight_decay"] = True
    kind = _LOOPS[config.name] if config.name in _LOOPS else _lion()
    return kind(groups, foreach=False, **settings)


def _lion() -> Callable[..., torch.optim.Optimizer]:
    library = import_extra("pytorch_optimizer.optimizer.lion", "optimizer.name = 'lion'", "optimizers")
    lion: Callable[..., torch.optim.Optimizer] = library.Lion
    return lion


def _split(spans: Iterable[DecaySpan]) -> Iterable[DecaySpan]:
    """Cut spans into parts of at most `_LOOP_LEAF` elements."""
    for span in spans:
        for start in range(span.start, span.end, _LOOP_LEAF):
            yield span._replace(start=start, end=min(start + _LOOP_LEAF, span.end))


def _group(
    leaves: Sequence[nn.Parameter], spans: Sequence[DecaySpan], config: OptimizerConfig, *, decayed: bool
) -> dict[str, Any]:
    params = [leaf for leaf, span in zip(leaves, spans, strict=True) if span.decayed == decayed]
    return {"params": params, "weight_decay": config.weight_decay if decayed else 0.0}
