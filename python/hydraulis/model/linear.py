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
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hydraulis.config.lora import Adapters
from hydraulis.model.float8 import Quantize, float8_linear
from hydraulis.model.tensors import add_product_, has_wide_gradient


class Linear(nn.Linear):
    """A linear map of tokens; with a wide gradient on CUDA, backward adds to `weight.grad` directly.

    Attributes:
        quantize: Function that rounds the factors of products to float8; None for products in the dtype.
    """

    quantize: Quantize | None = None

    def forward(self, input: Tensor) -> Tensor:
        """Map each token; [T, I] in, [T, O] out."""
        if self.quantize is not None:
            return float8_linear(input, self.weight, self.bias, self.quantize)
        if torch.is_grad_enabled() and has_wide_gradient(self.weight):
            return _linear(input, self.weight, self.bias)
        return super().forward(input)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TI: Tensor, weight_OI: nn.Parameter, bias_O: Tensor | None) -> Tensor:
        ctx.save_for_backward(x_TI)
        # Not among the saved tensors, whose hooks may return another tensor, without the gradient.
        ctx.weight = weight_OI
        return F.linear(x_TI, weight_OI, bias_O)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_TO: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
        (x_TI,) = ctx.saved_tensors
        needs_input, _, needs_bias = ctx.needs_input_grad
        add_product_(ctx.weight.grad, dy_TO.T, x_TI)
        # Autograd runs the weight's accumulation hooks next, without a gradient too.
        return dy_TO @ ctx.weight if needs_input else None, None, dy_TO.sum(0) if needs_bias else None


_linear: Callable[[Tensor, Tensor, Tensor | None], Tensor] = _Linear.apply


class AdaptedLinear(Linear):
    """A linear map with an adapter: `W x + b + scaling B A x`."""

    def __init__(self, inputs: int, outputs: int, adapters: Adapters, *, bias: bool) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.scaling = adapters.scaling
        self.lora_A = nn.Linear(inputs, adapters.rank, bias=False)
        self.lora_B = nn.Linear(adapters.rank, outputs, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        """Map each token; [T, I] in, [T, O] out."""
        inner_Tr = F.linear(input, self.lora_A.weight)
        # One operation, so that B A x is never stored.
        return torch.addmm(super().forward(input), inner_Tr, self.lora_B.weight.t(), alpha=self.scaling)


def add_adapters(layer: nn.Module, adapters: Adapters) -> None:
    """Replace the targets among the linear maps of a layer by adapted ones."""
    for name, module in list(layer.named_modules()):
        owner, _, leaf = name.rpartition(".")
        if leaf in adapters.targets and isinstance(module, nn.Linear):
            adapted = AdaptedLinear(
                module.in_features, module.out_features, adapters, bias=module.bias is not None
            )
            setattr(layer.get_submodule(owner), leaf, adapted)
