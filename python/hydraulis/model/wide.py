"""The type in which is added up what the model's own would round away."""

import torch


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Give the type of sums, master parameters and optimizer state beside values of a type: at least float32.

    >>> wide_dtype(torch.bfloat16), wide_dtype(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.promote_types(dtype, torch.float32)
