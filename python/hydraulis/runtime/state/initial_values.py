"""Sources of the master parameters' initial values."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hydraulis.model.init import draw_elements
from hydraulis.model.parameters import is_adapter
from hydraulis.runtime.state.parameters import ModelParameters


class ParameterValues(Protocol):
    """Values of every parameter of a model, of which a rank reads its optimizer shard only."""

    def read(self, name: str, start: int, end: int) -> Tensor:
        """Return the canonical elements from `start` to `end` of a parameter, flat, in any float dtype."""


@dataclass(frozen=True, slots=True)
class InitialValues:
    """Values drawn by a seed, the same for any number of ranks.

    Attributes:
        parameters: The model's parameters.
        seed: Seed of the run.
        dtype: Dtype of the values.
    """

    parameters: ModelParameters
    seed: int
    dtype: torch.dtype

    def read(self, name: str, start: int, end: int) -> Tensor:
        """Draw the blocks of the parameter that have these elements, and return the elements."""
        return draw_elements(name, start, end, self.parameters.config, self.seed).to(self.dtype)


@dataclass(frozen=True, slots=True)
class AdaptedValues:
    """Values of a model with adapters.

    Attributes:
        base: Values of the base model.
        adapters: Values of the adapters.
    """

    base: ParameterValues
    adapters: ParameterValues

    def read(self, name: str, start: int, end: int) -> Tensor:
        """Read from the source that has the parameter."""
        source = self.adapters if is_adapter(name) else self.base
        return source.read(name, start, end)
