"""Matrix products of narrow factors that are summed, and returned, in a wider dtype.

On CUDA one kernel multiplies bfloat16 factors, accumulates in float32 and writes float32. Elsewhere torch has
no such kernel, so the product is rounded to the factors' dtype first.
"""

import torch
from torch import Tensor

_NARROW = (torch.bfloat16, torch.float16)


def wide_product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `left @ right` in `dtype`.

    Args:
        left: Matrix [m, k].
        right: Matrix [k, n] of the same dtype.
        dtype: Dtype of the result: that of the factors, or float32.
    """
    if has_wide_kernel(left, dtype):
        return torch.mm(left, right, out_dtype=dtype)
    return (left @ right).to(dtype)


def add_product_(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add `left @ right` to `total`.

    For equal dtypes, and for narrow factors on CUDA, one kernel does it. It reads and writes 8 bytes per
    float32 element of the total; a bfloat16 product that is added afterwards takes 12.

    Args:
        total: Sum [m, n], in the dtype of the factors or in float32.
        left: Matrix [m, k].
        right: Matrix [k, n] of the same dtype.
    """
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    elif has_wide_kernel(left, total.dtype):
        torch.ops.aten.addmm.dtype_out(total, left, right, total.dtype, out=total)
    else:
        total += left @ right


def has_wide_kernel(factor: Tensor, dtype: torch.dtype) -> bool:
    """Whether one kernel multiplies factors of this tensor's dtype and device with a result in `dtype`."""
    return factor.device.type == "cuda" and factor.dtype in _NARROW and dtype == torch.float32


def has_wide_gradient(weight: Tensor) -> bool:
    """Whether the weight is trained, and one kernel can add a product to its gradient."""
    gradient = weight.grad
    return weight.requires_grad and gradient is not None and has_wide_kernel(weight, gradient.dtype)
