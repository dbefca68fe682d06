"""The elementwise operations of a layer, its leaves: by torch's operations, or by a kernel each.

A layer's matrix products and attention have kernels of their own. Between them, torch's operations (`PLAIN`)
launch a kernel for each sum, product and function. `train.compile` takes a Triton kernel for each leaf
instead, which Triton compiles when a stage is warmed up.

The Triton kernels compute in float32 between reading and writing; torch's operations round each intermediate
result to bfloat16. Results are therefore equal up to roundings, and those of Triton are closer to exact.
"""

import functools
from importlib.util import find_spec
from typing import NamedTuple

import torch

from hydraulis.errors import HydraulisError, InvalidInputError
from hydraulis.model.float8 import Quantize, quantize
from hydraulis.model.rope import Turn, rotate_heads
from hydraulis.model.swiglu import PLAIN_PRODUCT, ProductKernels


class Leaves(NamedTuple):
    """The elementwise operations of a layer, without gradients.

    Attributes:
        turn: Rotation of heads by the cosines and sines of a rotary table.
        product: Kernels of SwiGLU's gated product.
        quantize: Rounding of a factor to float8.
    """

    turn: Turn
    product: ProductKernels
    quantize: Quantize


PLAIN = Leaves(rotate_heads, PLAIN_PRODUCT, quantize)


@functools.cache
def compiled_leaves() -> Leaves:
    """Return the leaves that Triton compiles, each at its first call."""
    # Imported here, because it is no dependency.
    from hydraulis.model import triton_kernels as kernels

    return Leaves(kernels.rotate, ProductKernels(kernels.multiply, kernels.gradients), kernels.quantize)


def require_triton(device: torch.device) -> None:
    """Refuse a device for which Triton compiles nothing.

    Raises:
        InvalidInputError: The device is the CPU (code `device_missing`).
        HydraulisError: Triton is not installed (code `extra_missing`).
    """
    if device.type != "cuda":
        message = (
            "train.compile = true needs CUDA devices, and the ranks compute on the CPU; set "
            "train.compile = false"
        )
        raise InvalidInputError(message, code="device_missing")
    if find_spec("triton") is None:
        message = (
            "train.compile = true needs the library 'triton', which is not installed: pip install triton, or "
            "set train.compile = false"
        )
        raise HydraulisError(message, code="extra_missing")
