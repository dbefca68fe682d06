"""The elementwise operations of layers, loss and embedding, the leaves: by torch, or by a kernel each.

A layer's matrix products and attention have kernels of their own. Between them, torch's operations (`PLAIN`)
launch a kernel for each sum, product and function. `train.compile` takes a Triton kernel for each leaf
instead, which Triton compiles when a stage is warmed up.

The Triton kernels compute in float32 between reading and writing; torch's operations round each intermediate
result to bfloat16. Results are therefore equal up to roundings, and those of Triton are closer to exact.

Legend: c tokens of a chunk, v rows of the vocabulary on this rank.
"""

import functools
import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

from hydraulis.errors import HydraulisError, InvalidInputError
from hydraulis.model.embedding import AddRows
from hydraulis.model.float8 import Quantize, has_float8, quantize
from hydraulis.model.residual_norm import AddNorm, NormKernels, add_norm_by, plain_add_norm
from hydraulis.model.rope import Rotate, rotate_heads
from hydraulis.model.swiglu import PLAIN_PRODUCT, ProductKernels


class LossKernels(NamedTuple):
    """The two passes of cross entropy over a chunk's logits, [c, v].

    Attributes:
        exponentials: Largest logit of each token, [c], and sum of the exponentials of the logits' distances
            to it, [c]. It may overwrite the logits.
        gradient: Gradient of the logits: `exp(logit - max) * factor`, minus `less` in the target's column.
            Its arguments are the logits as `exponentials` left them, the largest logits, [c], the factors,
            [c], the columns of the targets, [c, 1], `less`, [c], and the dtype of the gradient.
    """

    exponentials: Callable[[Tensor], tuple[Tensor, Tensor]]
    gradient: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, torch.dtype], Tensor]


class Leaves(NamedTuple):
    """The elementwise operations of a layer.

    Attributes:
        add_norm: Sum of the residual stream and a layer's part, and the sum's norm.
        rotate: Rotation of heads by the cosines and sines of a rotary table, without gradients.
        product: Kernels of SwiGLU's gated product.
        quantize: Rounding of a factor to float8, without gradients.
        loss: Kernels of cross entropy.
        add_rows: Sum of the embedding's gradients by token; None for autograd's own.
    """

    add_norm: AddNorm
    rotate: Rotate
    product: ProductKernels
    quantize: Quantize
    loss: LossKernels
    add_rows: AddRows | None


def _exponentials(logits_cv: Tensor) -> tuple[Tensor, Tensor]:
    max_c = logits_cv.amax(dim=-1)
    logits_cv -= max_c[:, None]
    return max_c, logits_cv.exp_().sum(dim=-1)


def _loss_gradient(
    exp_cv: Tensor,
    _max_c: Tensor,
    factor_c: Tensor,
    column_c1: Tensor,
    less_c: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    exp_cv.mul_(factor_c[:, None]).scatter_add_(1, column_c1, -less_c[:, None])
    return exp_cv.to(dtype)


PLAIN_LOSS = LossKernels(_exponentials, _loss_gradient)
PLAIN = Leaves(plain_add_norm, rotate_heads, PLAIN_PRODUCT, quantize, PLAIN_LOSS, None)


@functools.cache
def compiled_leaves(device: torch.device) -> Leaves:
    """Return the leaves that Triton compiles for a device, each at its first call.

    A device without float8 rounds to it by torch's operations, for messages.
    """
    # Imported here, because it is no dependency.
    from hydraulis.model import triton_kernels as kernels

    return Leaves(
        add_norm_by(NormKernels(kernels.add_norm, kernels.norm_gradients)),
        kernels.rotate,
        ProductKernels(kernels.multiply, kernels.product_gradients),
        kernels.quantize if has_float8(device) else quantize,
        LossKernels(kernels.exponentials, kernels.loss_gradient),
        kernels.add_rows,
    )


def require_triton(device: torch.device) -> None:
    """Refuse a device for which Triton compiles nothing.

    Raises:
        InvalidInputError: The device is the CPU (code `device_missing`).
        HydraulisError: Triton is not installed, or the C compiler that it needs (code `extra_missing`).
    """
    if device.type != "cuda":
        message = (
            "train.compile = true needs CUDA devices, and the ranks compute on the CPU; set "
            "train.compile = false"
        )
        raise InvalidInputError(message, code="device_missing")
    missing = ""
    if find_spec("triton") is None:
        missing = "the library 'triton', which is not installed: pip install triton"
    elif "CC" not in os.environ and not any(map(shutil.which, ("gcc", "clang"))):
        missing = "a C compiler for Triton: install gcc, or name one by the variable CC"
    if missing:
        message = (
            f"train.compile = true, the default with train.device = 'cuda', needs {missing}, or set "
            "train.compile = false"
        )
        raise HydraulisError(message, code="extra_missing")
