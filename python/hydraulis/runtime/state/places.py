"""The places of parameters and gradients in a rank's flat buffers.

A buffer that is not sharded has a place for each parameter of a stage. A *sharded* buffer has parts that the
layer groups use in turn: those of even number share one part and those of odd number the other, so one layer
group computes while the next one arrives, or the last one leaves. A parameter that several layer groups use,
such as a tied embedding, stays in a part of its own while the layers take turns. In a part, the trained
parameters of a layer group come first, and its frozen ones follow.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hydraulis._core import BucketTransfer, Exchange, LocalSlice, Position, Scheme, local_slices
from hydraulis.config.kinds import ShardingKind
from hydraulis.errors import InvalidInputError
from hydraulis.runtime.state.parameters import ModelParameters

MOST_SCHEMES = 1_024
"""Schemes whose sizes are kept: those of a rich profile, under each kind of checkpointing."""
BUFFERS = 2
"""Parts that the layer groups of a sharded buffer use in turn."""


class PlacedExchange(NamedTuple):
    """An exchange whose near segments are places in a sharded buffer; see the core's `Exchange`."""

    near: NDArray[np.int64]
    near_counts: NDArray[np.int64]
    far: NDArray[np.int64]
    far_counts: NDArray[np.int64]


class PlacedTransfer(NamedTuple):
    """A bucket's exchanges, the one inside the node with its places; see the core's `BucketTransfer`."""

    inside: Exchange | PlacedExchange
    relayed: int
    room: int
    between: Exchange | None


@dataclass(frozen=True, slots=True)
class Places:
    """The layout of a rank's buffer of parameters, or of gradients.

    Attributes:
        elements: Number of elements of the buffer.
        starts: First element of each part of a sharded buffer: of layer groups of even number, of odd number,
            and of those that stay; None for a buffer with a place for each parameter of a stage.
        staying: Layer groups whose parameters have a part of their own.
    """

    elements: int
    starts: tuple[int, ...] | None = None
    staying: frozenset[int] = frozenset()

    @property
    def largest_part(self) -> int:
        """Number of elements of the largest part of a sharded buffer."""
        ends = [*(self.starts or ()), self.elements]
        return max(end - start for start, end in pairwise(ends))

    def of_slices(self, parameters: ModelParameters, slices: Sequence[LocalSlice]) -> dict[int, int]:
        """Return the first element of each parameter, by its index in the table.

        Args:
            parameters: The model's parameters.
            slices: Slices of the rank's stage that the buffer has, in the order of the local shard.
        """
        if self.starts is None:
            return {piece.parameter: piece.offset for piece in slices}
        places: dict[int, int] = {}
        # The end of each layer group's parameters so far.
        ends: dict[int, int] = {}
        for piece in slices:
            number = parameters.layer_groups[piece.parameter]
            places[piece.parameter] = ends.setdefault(number, self._start(number))
            ends[number] += piece.elements
        return places

    def of_transfer(
        self, layer_group: int, transfer: BucketTransfer, *, elements_before: int = 0
    ) -> BucketTransfer | PlacedTransfer:
        """Return a bucket's transfer with its places in the buffer.

        Args:
            layer_group: Layer group of the bucket.
            transfer: Transfer of the bucket, with its places in the local shard.
            elements_before: Number of the layer group's elements in front of the bucket's.
        """
        if self.starts is None:
            return transfer
        inside, near = transfer.inside, transfer.inside.near
        if len(near):
            near = near.copy()
            near[:, 0] += self._start(layer_group) + elements_before - int(near[:, 0].min())
        placed = PlacedExchange(near, inside.near_counts, inside.far, inside.far_counts)
        return PlacedTransfer(placed, transfer.relayed, transfer.room, transfer.between)

    def _start(self, layer_group: int) -> int:
        """Return the first element of a layer group's part of a sharded buffer."""
        assert self.starts is not None
        return self.starts[_turn(layer_group, self.staying)]


class BufferPlaces(NamedTuple):
    """The layouts of a rank's buffers.

    Attributes:
        parameters: Layout of the parameters.
        gradients: Layout of the trained parameters' gradients.
    """

    parameters: Places
    gradients: Places


def buffer_places(
    parameters: ModelParameters,
    schemes: Iterable[Scheme],
    sharding: ShardingKind,
    *,
    elements: int,
    trained: int,
) -> BufferPlaces:
    """Lay out the buffers for the parameters and the gradients of any of these schemes.

    Args:
        parameters: The model's parameters.
        schemes: Every scheme that a plan of the run may use; without stages under sharding.
        sharding: Tensors that ranks hold in parts.
        elements: Elements of the largest stage of these schemes.
        trained: Trained elements of the largest stage of these schemes.
    """
    whole, schemes = Places(elements), list(schemes)
    if sharding == "none":
        return BufferPlaces(whole, Places(trained))
    # A tied embedding's gradient is complete once the backward reaches the embedding.
    gradients = _in_parts(parameters, schemes, frozenset(), has_frozen=False)
    if sharding == "gradients":
        return BufferPlaces(whole, gradients)
    rows = parameters.table.parameters
    staying = frozenset(row.layer_groups[0] for row in rows if len(row.layer_groups) > 1)
    return BufferPlaces(_in_parts(parameters, schemes, staying, has_frozen=True), gradients)


def check_stages(sharding: ShardingKind, schemes: Iterable[Scheme]) -> None:
    """Check that schemes admit the sharding.

    With stages, a computation that waits for its buffer would stop the stages on which the exchange depends.

    Raises:
        InvalidInputError: Gradients or parameters are sharded, and a scheme has pipeline stages (code
            `scheme_model_mismatch`).
    """
    staged = [scheme for scheme in schemes if scheme.pp > 1]
    if sharding != "none" and staged:
        message = (
            f"scheme {staged[0]} has {staged[0].pp} pipeline stages, and train.sharding = '{sharding}' needs "
            "schemes without stages: name others in planner.strategies and planner.schemes, or set "
            "train.sharding = 'none'"
        )
        raise InvalidInputError(message, code="scheme_model_mismatch")


def _in_parts(
    parameters: ModelParameters, schemes: Iterable[Scheme], staying: frozenset[int], *, has_frozen: bool
) -> Places:
    """Lay out a sharded buffer for layer groups of any of these schemes, with frozen parameters or not."""
    largest = [0] * (BUFFERS + 1)
    for scheme in schemes:
        for layer_group, size in _largest_groups(parameters, scheme, has_frozen=has_frozen).items():
            turn = _turn(layer_group, staying)
            largest[turn] = max(largest[turn], size)
    ends = list(accumulate(largest, initial=0))
    return Places(ends[-1], tuple(ends[:-1]), staying)


def _turn(layer_group: int, staying: frozenset[int]) -> int:
    """Return the place of a layer group's part among the parts of a sharded buffer."""
    return BUFFERS if layer_group in staying else layer_group % BUFFERS


@lru_cache(MOST_SCHEMES)
def _largest_groups(parameters: ModelParameters, scheme: Scheme, *, has_frozen: bool) -> Counter[int]:
    """Return the most elements of each layer group on any rank of a scheme without stages."""
    largest = Counter[int]()
    for position in Position.all(scheme):
        if position.context_rank:
            continue
        sizes = Counter[int]()
        for piece in local_slices(parameters.table, position):
            if has_frozen or parameters.trained[piece.parameter]:
                sizes[parameters.layer_groups[piece.parameter]] += piece.elements
        largest |= sizes
    return largest
