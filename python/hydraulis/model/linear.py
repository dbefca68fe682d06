"""Linear maps: one whose product adds to the weight's gradient directly, and one with LoRA's adapter.

**Gradient.** A bfloat16 weight has a float32 gradient. Autograd makes a bfloat16 product for each
micro-batch, and adds it: 12 bytes of traffic per element, and a rounding. On CUDA the product itself can add
to the float32 gradient: 8 bytes, and no rounding. Elsewhere, and for weights without such a gradient, the map
is torch's own.

**Adapters** are a product of two narrow matrices added to a frozen linear map. Tensor parallelism needs
nothing further here. Where the linear map has split outputs, each rank computes the whole `A x` and its rows
of `B A x`. Where it has split inputs, each rank's columns of A give an addend of `A x`, B is linear, and the
sum over the ranks that follows the map sums the adapter too. The gradient of the whole matrix is partial on
each rank in both cases, like that of every replicated parameter (`parallel/tensor.py`).

Legend: T tokens of the packed micro-batch, I inputs, O outputs, r rank.
"""

from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import TorchDispatchMode

from hydraulis.config.lora import Adapters
from hydraulis.model.float8 import Quantize, float8_linear
from hydraulis.model.tensors import add_product_, has_wide_gradient

_Result = TypeVar("_Result")
_mode: ContextVar[TorchDispatchMode | None] = ContextVar("mode", default=None)


class WatchedMaps:
    """A context in which a dispatch mode sees the operations of linear maps, and no others.

    In a mode every operation takes tens of microseconds of the host's time.

    Args:
        mode: Dispatch mode.
    """

    def __init__(self, mode: TorchDispatchMode) -> None:
        self._watching = mode
        self._before: Token[TorchDispatchMode | None] | None = None

    def __enter__(self) -> None:
        self._before = _mode.set(self._watching)

    def __exit__(self, *_: object) -> None:
        assert self._before is not None
        _mode.reset(self._before)


def _in_mode(compute: Callable[[], _Result]) -> _Result:
    """Compute in the mode that watches linear maps; a map within another one is in it already."""
    mode = _mode.get()
    if mode is None:
        return compute()
    before = _mode.set(None)
    try:
        with mode:
            return compute()
    finally:
        _mode.reset(before)


class Linear(nn.Linear):
    """A linear map of tokens; with a wide gradient on CUDA, backward adds to `weight.grad` directly.

    Attributes:
        quantize: Function that rounds the factors of products to float8; None for products in the dtype.
    """

    quantize: Quantize | None = None

    def forward(self, input: Tensor) -> Tensor:
        """Map each token; [T, I] in, [T, O] out."""
        return _in_mode(lambda: self._map(input))

    def _map(self, input: Tensor) -> Tensor:
        if self.quantize is not None:
            return float8_linear(input, self.weight, self.bias, self.quantize)
        if self.adds_to_gradient():
            (y_TO,) = _linear_maps(input, self.weight, self.bias)
            return y_TO
        return F.linear(input, self.weight, self.bias)

    def adds_to_gradient(self) -> bool:
        """Return whether backward adds to `weight.grad` directly."""
        return self.quantize is None and torch.is_grad_enabled() and has_wide_gradient(self.weight)


def map_together(x_TI: Tensor, *maps: nn.Module) -> tuple[Tensor, ...]:
    """Apply several linear maps to the same tokens.

    Where backward adds to the weights' gradients directly, the matrix products add up the input's gradient
    too, instead of a separate addition for each further map. The maps must have no forward hooks.
    """
    if all(type(one) is Linear and one.adds_to_gradient() for one in maps):
        parameters = [parameter for one in maps for parameter in (one.weight, one.bias)]
        return _in_mode(lambda: _linear_maps(x_TI, *parameters))
    return tuple(one(x_TI) for one in maps)


class _LinearMaps(torch.autograd.Function):
    """Linear maps of the same tokens, given by a weight and a bias each; a bias may be None."""

    @staticmethod
    def forward(ctx: Any, x_TI: Tensor, *parameters: Any) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x_TI)
        # Not among the saved tensors, whose hooks may return another tensor, without the gradient.
        ctx.weights = parameters[::2]
        return tuple(map(F.linear, [x_TI] * len(ctx.weights), ctx.weights, parameters[1::2]))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (x_TI,) = ctx.saved_tensors
        needs_input, *needs_parameter = ctx.needs_input_grad
        dx_TI = None
        for weight_OI, dy_TO in zip(ctx.weights, gradients, strict=True):
            add_product_(weight_OI.grad, dy_TO.T, x_TI)
            if needs_input:
                dx_TI = dy_TO @ weight_OI if dx_TI is None else dx_TI.addmm_(dy_TO, weight_OI)
        dbiases = (
            dy_TO.sum(0) if needs else None
            for dy_TO, needs in zip(gradients, needs_parameter[1::2], strict=True)
        )
        # Autograd runs the weights' accumulation hooks next, without a gradient too.
        return dx_TI, *(gradient for dbias_O in dbiases for gradient in (None, dbias_O))


_linear_maps: Callable[..., tuple[Tensor, ...]] = _LinearMaps.apply


class AdaptedLinear(Linear):
    """A linear map with an adapter: `W x + b + scaling B A x`."""

    def __init__(self, inputs: int, outputs: int, adapters: Adapters, *, bias: bool) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.scaling = adapters.scaling
        self.lora_A = nn.Linear(inputs, adapters.rank, bias=False)
        self.lora_B = nn.Linear(adapters.rank, outputs, bias=False)

    def _map(self, input: Tensor) -> Tensor:
        inner_Tr = F.linear(input, self.lora_A.weight)
        # One operation, so that B A x is never stored.
        return torch.addmm(super()._map(input), inner_Tr, self.lora_B.weight.t(), alpha=self.scaling)


def add_adapters(layer: nn.Module, adapters: Adapters) -> None:
    """Replace the targets among the linear maps of a layer by adapted ones."""
    for name, module in list(layer.named_modules()):
        owner, _, leaf = name.rpartition(".")
        if leaf in adapters.targets and isinstance(module, nn.Linear):
            adapted = AdaptedLinear(
                module.in_features, module.out_features, adapters, bias=module.bias is not None
            )
            setattr(layer.get_submodule(owner), leaf, adapted)
