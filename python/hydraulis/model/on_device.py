"""Brings what the host has made to the device that computes."""

import torch
from torch import Tensor


def on_device(x: Tensor, device: torch.device | str) -> Tensor:
    """Copy a tensor of the host to a device; on CUDA the host does not wait for it.

    From memory that is not pinned, CUDA copies with the host standing by until all that was queued is done.
    """
    if torch.device(device).type != "cuda":
        return x.to(device)
    return torch.empty_like(x, pin_memory=True).copy_(x).to(device, non_blocking=True)
