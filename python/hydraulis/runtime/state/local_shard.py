"""The local shard: flat parameter and gradient buffers behind every stage that a rank may run."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Self

import torch
from torch import Tensor

from hydraulis._core import Position, Scheme, local_slices
from hydraulis.config.kinds import GradientKind
from hydraulis.model.rope import rotary_frequencies
from hydraulis.model.tensors import wide_dtype
from hydraulis.runtime.ranks.device import CPU
from hydraulis.runtime.state.gradient_places import GradientPlaces, gradient_places
from hydraulis.runtime.state.parameters import ModelParameters


@dataclass(frozen=True, slots=True, eq=False)
class LocalShard:
    """Parameters and gradients of the rank's stage in the current iteration.

    The buffers are allocated once for the largest stage of the run, so a change of strategy allocates
    nothing. Trained parameters come first, so whole gradients have the offsets of their parameters.

    Attributes:
        parameters: The model's parameters.
        parameter: Flat parameters, trained and frozen ones, in the model's dtype.
        gradient: Flat gradients of the trained parameters, or of two layer groups of them, in at least
            float32, because bfloat16 would lose small terms of long sums. Each `param.grad` of a stage is a
            view of it.
        places: Places of the gradients in that buffer.
    """

    parameters: ModelParameters
    parameter: Tensor
    gradient: Tensor
    places: GradientPlaces

    @classmethod
    def allocate(
        cls,
        parameters: ModelParameters,
        schemes: Sequence[Scheme],
        dtype: torch.dtype,
        device: torch.device = CPU,
        gradients: GradientKind = "whole",
    ) -> Self:
        """Allocate the buffers for the largest stage of these schemes, and the rotary frequencies.

        Raises:
            InvalidInputError: A scheme has more stages than the model has layers (code
                `scheme_model_mismatch`).
        """
        sizes = [largest_stage(parameters, scheme) for scheme in schemes]
        elements, trained = (max(column) for column in zip(*sizes, strict=True))
        places = gradient_places(parameters, schemes, gradients, trained)
        # Kept from now on, so that no stage allocates them.
        rotary_frequencies(parameters.config, wide_dtype(dtype), device)
        return cls(
            parameters,
            torch.zeros(elements, dtype=dtype, device=device),
            torch.zeros(places.elements, dtype=wide_dtype(dtype), device=device),
            places,
        )


class StageSize(NamedTuple):
    """Size of a stage on one rank.

    Attributes:
        elements: Number of parameter elements, trained and frozen.
        trained: Number of trained elements.
    """

    elements: int
    trained: int


@lru_cache
def largest_stage(parameters: ModelParameters, scheme: Scheme) -> StageSize:
    """Return the most elements, and the most trained elements, of any rank of a scheme.

    Raises:
        InvalidInputError: The scheme has more stages than the model has layers (code
            `scheme_model_mismatch`).
    """
    # Context ranks hold the same parameters.
    positions = [position for position in Position.all(scheme) if position.context_rank == 0]
    sizes = [_stage_size(parameters, position) for position in positions]
    return StageSize(*(max(column) for column in zip(*sizes, strict=True)))


def _stage_size(parameters: ModelParameters, position: Position) -> StageSize:
    slices = local_slices(parameters.table, position)
    trained = sum(one.elements for one in slices if parameters.trained[one.parameter])
    return StageSize(sum(one.elements for one in slices), trained)
