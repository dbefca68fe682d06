"""The local shard: flat parameter and gradient buffers behind every stage that a rank may run."""

from collections.abc import Collection, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

from hydraulis._core import Position, Scheme, local_slices
from hydraulis.config.kinds import ShardingKind
from hydraulis.model.rope import rotary_frequencies
from hydraulis.model.tensors import wide_dtype
from hydraulis.runtime.ranks.device import CPU
from hydraulis.runtime.state.parameters import ModelParameters
from hydraulis.runtime.state.places import MOST_SCHEMES, buffer_places


class StageSize(NamedTuple):
    """Size of a stage on one rank.

    Attributes:
        elements: Number of parameter elements, trained and frozen.
        trained: Number of trained elements.
    """

    elements: int
    trained: int


class LocalShard:
    """Parameters and gradients of the rank's stage in the current iteration.

    The buffers have the size of the largest stage of the rank's scheme, so a rank of a wide replica has more
    memory for activations than one of a narrow replica. `fit` resizes their storages, and the parameters of
    stages, which are views of them, stay valid. At first they have the size for the scheme that needs least,
    and zeros. A sharded buffer has one size for all schemes. Trained parameters come first, so whole
    gradients have the offsets of their parameters.

    Args:
        parameters: The model's parameters.
        schemes: Every scheme that a plan of the run may use.
        dtype: Dtype of the parameters.
        device: Device of the buffers.
        sharding: Tensors that ranks hold in parts.

    Attributes:
        parameters: The model's parameters.
        parameter: Flat parameters, trained and frozen ones, or those of two layer groups, in the model's
            dtype.
        gradient: Flat gradients of the trained parameters, or of two layer groups of them, in at least
            float32, because bfloat16 would lose small terms of long sums. Each `param.grad` of a stage is a
            view of it.
        parameter_places: Places in the buffer of parameters.
        gradient_places: Places in the buffer of gradients.
        common_gradients: Number of gradients for which every rank has room in the current iteration.

    Raises:
        InvalidInputError: A scheme has more stages than the model has layers (code `scheme_model_mismatch`).
    """

    def __init__(
        self,
        parameters: ModelParameters,
        schemes: Sequence[Scheme],
        dtype: torch.dtype,
        device: torch.device = CPU,
        sharding: ShardingKind = "none",
    ) -> None:
        sizes = [largest_stage(parameters, scheme) for scheme in schemes]
        most = StageSize(*(max(column) for column in zip(*sizes, strict=True)))
        self.parameters = parameters
        self.parameter_places, self.gradient_places = buffer_places(
            parameters, schemes, sharding, **most._asdict()
        )
        # Kept from now on, so that no stage allocates them.
        rotary_frequencies(parameters.config, wide_dtype(dtype), device)
        self.parameter = torch.empty(0, dtype=dtype, device=device)
        self.gradient = torch.empty(0, dtype=wide_dtype(dtype), device=device)
        self.common_gradients = 0
        self._least_trained = min(size.trained for size in sizes)
        self.fit(min(schemes, key=partial(largest_stage, parameters)), schemes)

    @property
    def least_gradients(self) -> int:
        """Number of gradients for which every rank has room in any iteration."""
        return self._sized(StageSize(0, self._least_trained)).trained

    def bytes_of(self, scheme: Scheme) -> int:
        """Return the bytes of both buffers on a rank of a scheme."""
        size = self._sized(largest_stage(self.parameters, scheme))
        return size.elements * self.parameter.itemsize + size.trained * self.gradient.itemsize

    def fit(self, own: Scheme | None, schemes: Collection[Scheme]) -> None:
        """Resize the buffers for an iteration; if that changes one, both are zero afterwards.

        Nothing may be in flight from or to the buffers. If the device lacks the memory, they are empty.

        Args:
            own: Scheme of this rank; None without work, where only outgoing parameters need room.
            schemes: Schemes of the iteration's replicas.
        """
        least = min(largest_stage(self.parameters, scheme).trained for scheme in schemes)
        needed = StageSize(0, least) if own is None else largest_stage(self.parameters, own)
        self.common_gradients = self._sized(StageSize(0, least)).trained
        size = self._sized(needed)
        if size == StageSize(len(self.parameter), len(self.gradient)):
            return
        # All memory is returned before any is requested.
        self.parameter, self.gradient = _resized(self.parameter, 0), _resized(self.gradient, 0)
        try:
            self.parameter = _resized(self.parameter, size.elements)
            self.gradient = _resized(self.gradient, size.trained)
        except torch.OutOfMemoryError:
            self.parameter = _resized(self.parameter, 0)
            raise

    def _sized(self, stage: StageSize) -> StageSize:
        """Return the sizes of the buffers for a stage: a sharded buffer has one for all."""
        parameter, gradient = self.parameter_places, self.gradient_places
        return StageSize(
            stage.elements if parameter.starts is None else parameter.elements,
            stage.trained if gradient.starts is None else gradient.elements,
        )


def _resized(flat: Tensor, elements: int) -> Tensor:
    """Resize a flat tensor's storage, and return a tensor of all of it, with zeros."""
    storage = flat.untyped_storage()
    storage.resize_(elements * flat.itemsize)
    return flat.new_empty(0).set_(storage, 0, (elements,), (1,)).zero_()


@lru_cache(MOST_SCHEMES)
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
