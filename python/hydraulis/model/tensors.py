"""Operations on single tensors: the dtype of sums, products in it, host memory, copies to a device, storages.

On CUDA one kernel multiplies bfloat16 factors, accumulates in float32 and writes float32. Elsewhere torch has
no such kernel, so the product is rounded to the factors' dtype first.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hydraulis.errors import HydraulisError

# As torch reports `cudaErrorMemoryAllocation` of cudaHostAlloc (`allocate_host_memory` in
# ATen/cuda/CachingHostAllocator.cpp); the device's memory has the same text.
_NO_MEMORY = "CUDA error: out of memory"


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for sums, master parameters and optimizer state: `dtype`, but at least float32.

    >>> wide_dtype(torch.bfloat16), wide_dtype(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.promote_types(dtype, torch.float32)


def to_device(x: Tensor, device: torch.device | str) -> Tensor:
    """Copy a host tensor to a device; on CUDA the host does not wait for the copy.

    A CUDA copy from pageable memory blocks the host until all queued work is done, so the copy is made from
    pinned memory. A program can have set a device as torch's default: then the tensor is there already.
    """
    if torch.device(device).type != "cuda" or x.is_cuda:
        return x.to(device)
    return empty_on_host(x.shape, x.dtype, is_pinned=True).copy_(x).to(device, non_blocking=True)


def empty_on_host(size: Sequence[int], dtype: torch.dtype, *, is_pinned: bool) -> Tensor:
    """Return an uninitialised host tensor; CUDA copies from and to pinned memory while the host goes on.

    Args:
        size: Size of each dimension.
        dtype: Dtype of the elements.
        is_pinned: Whether the memory is pinned.

    Raises:
        HydraulisError: The host has no memory left to pin (code `out_of_device_memory`).
    """
    try:
        return torch.empty(size, dtype=dtype, device="cpu", pin_memory=is_pinned)
    except RuntimeError as error:
        if not (is_pinned and str(error).startswith(_NO_MEMORY)):
            raise
        mib = -(-math.prod(size) * dtype.itemsize // (1 << 20))
        message = (
            f"the host has no {mib:,} MiB of memory left to pin for copies from and to the device. Pinned "
            "memory holds the activations of layers that offload, copies of the optimizer shard for "
            "checkpoints, and the next micro-batches: lower planner.host_memory_mib or leave offload out of "
            "planner.checkpointing and the schemes, give the node or its container more memory, or train "
            "with fewer ranks on each node"
        )
        raise HydraulisError(message, code="out_of_device_memory") from error


def storage_address(x: Tensor) -> int:
    """Return the address of the storage's description; views of one tensor have the same.

    The address exists on devices without memory too, such as `meta`.
    """
    address: int = x.untyped_storage()._cdata
    return address


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
