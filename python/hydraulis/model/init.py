"""Initial parameter values that depend on the seed and the parameter's name, and on nothing else."""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from hydraulis.config.model import ModelConfig


def initial_value(
    name: str, shape: Sequence[int], config: ModelConfig, seed: int, dtype: torch.dtype
) -> Tensor:
    """Draw one full parameter, on CPU.

    Any rank can make any parameter in any order and gets the same values. They are drawn in float32
    whatever the dtype, so models in different dtypes start from the same values, rounded.

    Args:
        name: master parameter name, such as `layers.0.mlp.up_proj.weight`.
        shape: of the whole parameter, not of a slice.
        config: gives `initializer_range`, the standard deviation.
        seed: of the run.
        dtype: of the result.

    Returns:
        Ones for a norm, zeros for a bias, else normal values around 0.
    """
    if name.endswith("bias"):
        return torch.zeros(*shape, dtype=dtype)
    if name.endswith("norm.weight"):
        return torch.ones(*shape, dtype=dtype)
    generator = torch.Generator().manual_seed(_parameter_seed(name, seed))
    value = torch.empty(*shape, dtype=torch.float32)
    return value.normal_(0.0, config.initializer_range, generator=generator).to(dtype)


def _parameter_seed(name: str, seed: int) -> int:
    # A hash keeps neighbouring seeds apart; Python's own differs from process to process.
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big")
