"""Helpers for single tensors: the accumulation dtype, copies from the host to a device, shared storages."""

import torch
from torch import Tensor


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for sums, master parameters and optimizer state: `dtype`, but at least float32.

    >>> wide_dtype(torch.bfloat16), wide_dtype(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.promote_types(dtype, torch.float32)


def to_device(x: Tensor, device: torch.device | str) -> Tensor:
    """Copy a host tensor to a device; on CUDA the host does not wait for the copy.

    A CUDA copy from pageable memory blocks the host until all queued work is done, so the copy is made from
    pinned memory.
    """
    if torch.device(device).type != "cuda":
        return x.to(device)
    return torch.empty_like(x, pin_memory=True).copy_(x).to(device, non_blocking=True)


def storage_address(x: Tensor) -> int:
    """Return the address of the storage's description; views of one tensor have the same.

    The address exists on devices without memory too, such as `meta`.
    """
    address: int = x.untyped_storage()._cdata
    return address
