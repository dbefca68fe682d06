"""SwiGLU's gated product, `silu(gate) * up`; of its tensors only gate and up are saved for backward.

By torch's own operations a SwiGLU saves four tensors of its width: gate, silu(gate), up, and the product as
the input of the next linear map. Here backward computes silu(gate) and the product again, by the same
elementwise operations, so gradients are bit-identical.

Legend: T tokens of the packed micro-batch, I width.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks

from hydraulis.model.tensors import storage_address


class ProductKernels(NamedTuple):
    """The elementwise operations of the gated product.

    Attributes:
        multiply: Product of gate and up.
        gradients: Gradients of gate and up, from the product's gradient, gate and up.
    """

    multiply: Callable[[Tensor, Tensor], Tensor]
    gradients: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def _multiply(gate_TI: Tensor, up_TI: Tensor) -> Tensor:
    return F.silu(gate_TI) * up_TI


def _gradients(dproduct_TI: Tensor, gate_TI: Tensor, up_TI: Tensor) -> tuple[Tensor, Tensor]:
    dgate_TI = torch.ops.aten.silu_backward(dproduct_TI * up_TI, gate_TI)
    return dgate_TI, dproduct_TI * F.silu(gate_TI)


PLAIN_PRODUCT = ProductKernels(_multiply, _gradients)


def gated_product(gate_TI: Tensor, up_TI: Tensor, kernels: ProductKernels = PLAIN_PRODUCT) -> Tensor:
    """Return `silu(gate) * up`, [T, I]."""
    return _product(gate_TI, up_TI, kernels)


@contextmanager
def product_not_saved(product_TI: Tensor) -> Iterator[None]:
    """Compute the product again in backward, for every operation in this context that would save it.

    Checkpointing does not see the tensors that operations in this context save, so it cannot free them. Of a
    linear map they are the product and the weight.

    Args:
        product_TI: Result of `gated_product`. Without a gradient of its own it is saved as usual, because
            then gate and up are not.
    """
    saved: Any = product_TI.grad_fn
    if saved is None:
        yield
        return

    # Autograd keeps the hooks until backward, so they refer to the product's memory by its address alone.
    product = storage_address(product_TI)

    def pack(x: Tensor) -> Any:
        return saved if storage_address(x) == product else x

    with saved_tensors_hooks(pack, _unpack):
        yield


def _unpack(packed: Any) -> Tensor:
    return packed if isinstance(packed, Tensor) else packed.kernels.multiply(*_factors(packed))


class _GatedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_TI: Tensor, up_TI: Tensor, kernels: ProductKernels) -> Tensor:
        ctx.save_for_backward(gate_TI, up_TI)
        ctx.factors, ctx.kernels = None, kernels
        return kernels.multiply(gate_TI, up_TI)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dproduct_TI: Tensor) -> tuple[Tensor, Tensor, None]:
        gate_TI, up_TI = _factors(ctx)
        ctx.factors = None
        return *ctx.kernels.gradients(dproduct_TI, gate_TI, up_TI), None


_product: Callable[[Tensor, Tensor, ProductKernels], Tensor] = _GatedProduct.apply


def _factors(ctx: Any) -> tuple[Tensor, Tensor]:
    """Return gate and up; checkpointing lets a function read its saved tensors only once."""
    if ctx.factors is None:
        ctx.factors = ctx.saved_tensors
    factors: tuple[Tensor, Tensor] = ctx.factors
    return factors
