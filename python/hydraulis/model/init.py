"""Initial parameter values as a function of the seed and the parameter's name."""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from hydraulis.config.model import ModelConfig


def initial_value(
    name: str, shape: Sequence[int], config: ModelConfig, seed: int, dtype: torch.dtype
) -> Tensor:
    """Draw one full parameter on the CPU.

    Any rank can draw any parameter in any order and gets the same values. The values are drawn in float32,
    so models in different dtypes start from the same values, rounded.

    Args:
        name: Name of the master parameter, such as `layers.0.mlp.up_proj.weight`.
        shape: Shape of the whole parameter, not of a slice.
        config: Configuration of the model; `initializer_range` is the standard deviation.
        seed: Seed of the run.
        dtype: Dtype of the result.

    Returns:
        Ones for a norm, zeros for a bias, and normal values around 0 for a matrix.
    """
    if name.endswith("bias"):
        return torch.zeros(*shape, dtype=dtype)
    if name.endswith("norm.weight"):
        return torch.ones(*shape, dtype=dtype)
    generator = torch.Generator().manual_seed(_parameter_seed(name, seed))
    value = torch.empty(*shape, dtype=torch.float32)
    return value.normal_(0.0, config.initializer_range, generator=generator).to(dtype)


def _parameter_seed(name: str, seed: int) -> int:
    # SHA-256 separates neighbouring seeds; Python's own hash differs between processes.
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big")
