"""Linear maps that multiply in float8: half the bytes and twice the rate of bfloat16 on Hopper and later.

Each row of a factor has a scale of its own, a power of two, so that its largest element is at most 448, the
largest number of e4m3. The map's output and the gradient of its input are products of float8 factors. The
weight's gradient is a product in the run's dtype, because its sum over tokens loses most by the rounding.
Rows are the tokens of activations and gradients, and the channels of the weight that the product keeps.

On CUDA cuBLAS or CUTLASS multiplies (`aten._scaled_mm`, devices of capability 8.9 or later). Elsewhere the
factors are quantized in the same way and multiplied in the run's dtype, so a CPU computes the same up to the
order of sums: a power of two times an e4m3 number has no rounding in bfloat16.

Legend: T tokens, I inputs, O outputs; R rows, C columns of a factor; M, N rows of two factors.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from hydraulis.errors import InvalidInputError
from hydraulis.model.tensors import add_product_, has_wide_gradient

# Both dimensions of a weight are multiples of it in aten._scaled_mm.
MULTIPLE = 16
_LEAST_CAPABILITY = (8, 9)
LARGEST = torch.finfo(torch.float8_e4m3fn).max
# Largest element of a row of zeros, for its scale.
SMALLEST = 1e-12
# Bits of a float32: the exponent, and the fraction below it.
EXPONENT, FRACTION = 0x7F800000, 0x007FFFFF


class Quantized(NamedTuple):
    """A factor in float8.

    Attributes:
        value_RC: Elements in e4m3, each over its row's scale; contiguous, also if the factor was transposed.
        scale_R1: Scale of each row, a power of two in float32.
    """

    value_RC: Tensor
    scale_R1: Tensor

    def widened(self, dtype: torch.dtype) -> Tensor:
        """Return the elements times their scales in a wider dtype, without a rounding."""
        return (self.value_RC.float() * self.scale_R1).to(dtype)


Quantize = Callable[[Tensor], Quantized]


def quantize(x_RC: Tensor) -> Quantized:
    """Round a factor to float8, row by row; a row with a number that is not finite has NaN."""
    wide_RC = x_RC.float()
    largest_R1 = wide_RC.abs().amax(dim=-1, keepdim=True).clamp(min=SMALLEST)
    # The next power of two: a fraction carries into the exponent.
    bits_R1 = (largest_R1 / LARGEST).view(torch.int32)
    scale_R1 = ((bits_R1 + FRACTION) & EXPONENT).view(torch.float32)
    unit_RC = wide_RC / scale_R1
    return Quantized(unit_RC.to(torch.float8_e4m3fn, memory_format=torch.contiguous_format), scale_R1)


def scaled_product(
    left: Quantized, right: Quantized, dtype: torch.dtype, bias_N: Tensor | None = None
) -> Tensor:
    """Return `left @ right.T + bias`, [M, N].

    Args:
        left: Factor of M rows.
        right: Factor of N rows, with as many columns.
        dtype: Dtype of the result; bfloat16 on CUDA.
        bias_N: Bias in that dtype; None for none.
    """
    if left.value_RC.device.type != "cuda":
        return F.linear(left.widened(dtype), right.widened(dtype), bias_N)
    # The second factor must be column-major: a transposed view.
    factors = left.value_RC, right.value_RC.t(), left.scale_R1, right.scale_R1.t()
    product: Tensor = torch.ops.aten._scaled_mm.default(*factors, bias_N, None, dtype)
    return product


def float8_linear(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, rounding: Quantize) -> Tensor:
    """Map each token, with products of float8 factors; [T, I] in, [T, O] out.

    Args:
        x_TI: Input.
        weight_OI: Weight, both of whose dimensions are multiples of `MULTIPLE`.
        bias_O: Bias; None for none.
        rounding: Function that quantizes a factor: `quantize`, or the same compiled.
    """
    return _float8_linear(x_TI, weight_OI, bias_O, rounding)


class _Float8Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, rounding: Quantize
    ) -> Tensor:
        # A frozen weight's backward needs no input.
        ctx.save_for_backward(x_TI if weight_OI.requires_grad else None)
        # Not among the saved tensors, whose hooks may return another tensor, without the gradient.
        ctx.weight, ctx.rounding = weight_OI, rounding
        return scaled_product(rounding(x_TI), rounding(weight_OI), x_TI.dtype, bias_O)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_TO: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        (x_TI,) = ctx.saved_tensors
        needs_input, needs_weight, needs_bias, _ = ctx.needs_input_grad
        dx_TI = dweight_OI = None
        if needs_input:
            weight_IO = ctx.weight.t().contiguous()
            dx_TI = scaled_product(ctx.rounding(dy_TO.contiguous()), ctx.rounding(weight_IO), dy_TO.dtype)
        if has_wide_gradient(ctx.weight):
            # Autograd runs the weight's accumulation hooks next, without a gradient too.
            add_product_(ctx.weight.grad, dy_TO.t(), x_TI)
        elif needs_weight:
            dweight_OI = dy_TO.t() @ x_TI
        return dx_TI, dweight_OI, dy_TO.sum(0) if needs_bias else None, None


_float8_linear: Callable[[Tensor, Tensor, Tensor | None, Quantize], Tensor] = _Float8Linear.apply


def has_float8(device: torch.device) -> bool:
    """Return whether a device has float8; the CPU emulates it."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= _LEAST_CAPABILITY


def require_float8(device: torch.device) -> None:
    """Refuse a CUDA device without products in float8; the CPU emulates them.

    Raises:
        InvalidInputError: The device's capability is below 8.9 (code `device_missing`).
    """
    if not has_float8(device):
        capability = torch.cuda.get_device_capability(device)
        least = ".".join(map(str, _LEAST_CAPABILITY))
        message = (
            f"train.float8 = true needs CUDA devices of capability {least} or later, and "
            f"{torch.cuda.get_device_name(device)} has {'.'.join(map(str, capability))}; set "
            "train.float8 = false"
        )
        raise InvalidInputError(message, code="device_missing")
