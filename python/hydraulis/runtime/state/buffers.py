"""The flat buffers behind every stage a rank may be: sized once, so that a switch allocates nothing."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from hydraulis._core import Position, Scheme, held_slices
from hydraulis.model.tensors import wide_dtype
from hydraulis.runtime.ranks.device import CPU
from hydraulis.runtime.state.parameters import ModelParameters


@dataclass(frozen=True, slots=True, eq=False)
class StrategyBuffers:
    """Parameters and gradients of the stage that this rank is in the current iteration.

    Attributes:
        parameters: all that any stage holds here.
        parameter: flat, in the model's dtype.
        gradient: flat, of as many elements, in at least float32: many small gradients are added up here, and
            bfloat16 would lose them. `param.grad` of every stage are views of it. Empty if they are frozen.
    """

    parameters: ModelParameters
    parameter: Tensor
    gradient: Tensor

    @classmethod
    def for_schemes(
        cls,
        parameters: ModelParameters,
        schemes: Iterable[Scheme],
        dtype: torch.dtype,
        device: torch.device = CPU,
    ) -> Self:
        """Allocate for the largest stage of any of these schemes.

        Raises:
            InvalidInputError: a scheme has more stages than the model has layers (code
                `scheme_model_mismatch`).
        """
        size = max(largest_stage(parameters, scheme) for scheme in schemes)
        wide = wide_dtype(dtype)
        gradient = torch.zeros(size if parameters.trained else 0, dtype=wide, device=device)
        return cls(parameters, torch.zeros(size, dtype=dtype, device=device), gradient)


def largest_stage(parameters: ModelParameters, scheme: Scheme) -> int:
    """Count the elements that the rank of a scheme holds which holds the most.

    Raises:
        InvalidInputError: the scheme has more stages than the model has layers (code
            `scheme_model_mismatch`).
    """
    return max(
        sum(held.elements for held in held_slices(parameters.table, position))
        for position in Position.all(scheme)
        if position.context_rank == 0  # the others hold the same
    )
