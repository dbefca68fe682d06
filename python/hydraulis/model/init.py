"""Initial parameter values as a function of the seed, the parameter's name and the block of elements.

A parameter's canonical elements (`runtime/state/parameters.py`) are drawn in blocks of `BLOCK`, each from a
generator of its own. A rank therefore draws only the blocks that its slices touch, and gets the values that
any other number of ranks gets.
"""

import hashlib
import math

import torch
from torch import Tensor

from hydraulis.config.model import ModelConfig
from hydraulis.model.parameters import is_adapter, is_adapter_output, row_of

# Number of elements of a block. It is part of the values: another number draws other ones. A rank draws less
# than two blocks more than a slice has; setting up a generator takes as long as drawing 2,000 elements.
BLOCK = 1 << 16


def draw_elements(name: str, start: int, end: int, config: ModelConfig, seed: int) -> Tensor:
    """Draw the canonical elements from `start` to `end` of a parameter, flat, in float32 on the CPU.

    Any rank can draw any elements in any order and gets the same values. Float32 is drawn for every dtype of
    the model, so models in different dtypes start from the same values, rounded.

    Norms are ones, biases and an adapter's B zeros. An adapter's A is Kaiming-uniform as in PEFT, and another
    matrix normal around 0.

    Args:
        name: Name of the master parameter.
        start: First element.
        end: One past the last element; the parameter may have more.
        config: Configuration of the model; `initializer_range` is the standard deviation.
        seed: Seed of the run.
    """
    value = torch.empty(end - start, dtype=torch.float32)
    if name.endswith("bias") or is_adapter_output(name):
        return value.zero_()
    if name.endswith("norm.weight"):
        return value.fill_(1.0)
    block = torch.empty(BLOCK, dtype=torch.float32)
    for number in range(start // BLOCK, -(-end // BLOCK)):
        first = number * BLOCK
        generator = torch.Generator().manual_seed(_block_seed(name, number, seed))
        _draw(block, name, config, generator)
        low, high = max(start, first), min(end, first + BLOCK)
        value[low - start : high - start] = block[low - first : high - first]
    return value


def _draw(block: Tensor, name: str, config: ModelConfig, generator: torch.Generator) -> None:
    if is_adapter(name):
        # kaiming_uniform_ with a = sqrt(5), torch's and PEFT's default for a linear map.
        bound = 1 / math.sqrt(row_of(name, config).shape[1])
        block.uniform_(-bound, bound, generator=generator)
    else:
        block.normal_(0.0, config.initializer_range, generator=generator)


def _block_seed(name: str, block: int, seed: int) -> int:
    # SHA-256 separates neighbouring seeds; Python's own hash differs between processes.
    digest = hashlib.sha256(f"{seed}:{name}:{block}".encode()).digest()
    return int.from_bytes(digest[:8], "big")
