"""The local shard: flat parameter and gradient buffers behind every stage that a rank may run."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Self

import torch
from torch import Tensor

from hydraulis._core import Position, Scheme, local_slices
from hydraulis.config.kinds import ShardingKind
from hydraulis.model.rope import rotary_frequencies
from hydraulis.model.tensors import wide_dtype
from hydraulis.runtime.ranks.device import CPU
from hydraulis.runtime.state.parameters import ModelParameters
from hydraulis.runtime.state.places import Places, buffer_places


@dataclass(frozen=True, slots=True, eq=False)
class LocalShard:
    """Parameters and gradients of the rank's stage in the current iteration.

    The buffers are allocated once for the largest stage of the run, so a change of strategy allocates
    nothing. Trained parameters come first, so whole gradients have the offsets of their parameters.

    Attributes:
        parameters: The model's parameters.
        parameter: Flat parameters, trained and frozen ones, or those of two layer groups, in the model's
            dtype.
        gradient: Flat gradients of the trained parameters, or of two layer groups of them, in at least
            float32, because bfloat16 would lose small terms of long sums. Each `param.grad` of a stage is a
            view of it.
        parameter_places: Places in the buffer of parameters.
        gradient_places: Places in the buffer of gradients.
    """

    parameters: ModelParameters
    parameter: Tensor
    gradient: Tensor
    parameter_places: Places
    gradient_places: Places

    @classmethod
    def allocate(
        cls,
        parameters: ModelParameters,
        schemes: Sequence[Scheme],
        dtype: torch.dtype,
        device: torch.device = CPU,
        sharding: ShardingKind = "none",
    ) -> Self:
        """Allocate the buffers for the largest stage of these schemes, and the rotary frequencies.

        Raises:
            InvalidInputError: A scheme has more stages than the model has layers (code
                `scheme_model_mismatch`).
        """
        sizes = [largest_stage(parameters, scheme) for scheme in schemes]
        elements, trained = (max(column) for column in zip(*sizes, strict=True))
        places = buffer_places(parameters, schemes, sharding, elements=elements, trained=trained)
        # Kept from now on, so that no stage allocates them.
        rotary_frequencies(parameters.config, wide_dtype(dtype), device)
        return cls(
            parameters,
            torch.zeros(places.parameters.elements, dtype=dtype, device=device),
            torch.zeros(places.gradients.elements, dtype=wide_dtype(dtype), device=device),
            places.parameters,
            places.gradients,
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
