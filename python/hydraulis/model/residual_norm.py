"""The sum of the residual stream and a layer's part, and its RMS norm: by torch's operations, or two kernels.

By torch's operations the gradient of the stream is the sum of two tensors, that of the stream itself and
that of the norm. The second kernel adds both.

Legend: T tokens of the packed micro-batch, H hidden.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

# The stream, a part to add to it if any, and the norm; gives the new stream and its norm.
AddNorm = Callable[[Tensor, Tensor | None, nn.RMSNorm], tuple[Tensor, Tensor]]


class NormKernels(NamedTuple):
    """The kernels of a sum with its norm, without gradients.

    Attributes:
        add_norm: Sum and its norm, from the addends (the second may be None), the weight and the epsilon.
        gradients: Gradients of each addend, which are equal, and of the weight, in at least float32, or None;
            from the gradients of the sum and of its norm, the sum, the weight, the epsilon, and whether the
            weight needs one.
    """

    add_norm: Callable[[Tensor, Tensor | None, Tensor, float], tuple[Tensor, Tensor]]
    gradients: Callable[[Tensor, Tensor, Tensor, Tensor, float, bool], tuple[Tensor, Tensor | None]]


def plain_add_norm(x_TH: Tensor, y_TH: Tensor | None, norm: nn.RMSNorm) -> tuple[Tensor, Tensor]:
    """Compute the sum and its norm by torch's operations."""
    sum_TH = x_TH if y_TH is None else x_TH + y_TH
    return sum_TH, norm(sum_TH)


def add_norm_by(kernels: NormKernels) -> AddNorm:
    """Return a function that computes the sum and its norm by kernels."""

    def add_norm(x_TH: Tensor, y_TH: Tensor | None, norm: nn.RMSNorm) -> tuple[Tensor, Tensor]:
        assert norm.eps is not None
        return _add_norm(x_TH, y_TH, norm.weight, norm.eps, kernels)

    return add_norm


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_TH: Tensor, y_TH: Tensor | None, weight_H: Tensor, epsilon: float, kernels: NormKernels
    ) -> tuple[Tensor, Tensor]:
        sum_TH, normed_TH = kernels.add_norm(x_TH, y_TH, weight_H, epsilon)
        ctx.save_for_backward(sum_TH, weight_H)
        ctx.epsilon, ctx.kernels = epsilon, kernels
        return sum_TH, normed_TH

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dsum_TH: Tensor, dnormed_TH: Tensor) -> tuple[Tensor | None, ...]:
        needs_x, needs_y, needs_weight, *_ = ctx.needs_input_grad
        dx_TH, dweight_H = ctx.kernels.gradients(
            dsum_TH, dnormed_TH, *ctx.saved_tensors, ctx.epsilon, needs_weight
        )
        return dx_TH if needs_x else None, dx_TH if needs_y else None, dweight_H, None, None


_add_norm: Callable[..., tuple[Tensor, Tensor]] = _AddNorm.apply
