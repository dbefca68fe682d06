"""The places of parameters and gradients in a rank's flat buffers.

A buffer that is not sharded has a place for each parameter of a stage. A *sharded* buffer has parts that the
layer groups use in turn: those of even number share one part and those of odd number the other, so one layer
group computes while the next one arrives, or the last one leaves. A parameter that several layer groups use,
such as a tied embedding, stays in a part of its own while the layers take turns.
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
        first: dict[int, int] = {}
        for piece in slices:
            first.setdefault(_bucket_of(parameters, piece), piece.offset)
        return {
            piece.parameter: piece.offset + self._shift(number, first[number])
            for piece in slices
            for number in [_bucket_of(parameters, piece)]
        }

    def of_transfer(self, bucket: int, transfer: BucketTransfer) -> BucketTransfer | PlacedTransfer:
        """Return a bucket's transfer with its places in the buffer."""
        if self.starts is None:
            return transfer
        inside, near = transfer.inside, transfer.inside.near
        if len(near):
            near = near.copy()
            near[:, 0] += self._shift(bucket, int(near[:, 0].min()))
        placed = PlacedExchange(near, inside.near_counts, inside.far, inside.far_counts)
        return PlacedTransfer(placed, transfer.relayed, transfer.room, transfer.between)

    def _shift(self, bucket: int, first: int) -> int:
        """Return the distance of a bucket from its place in the local shard, which begins at `first`."""
        assert self.starts is not None
        return self.starts[_turn(bucket, self.staying)] - first


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
        sharding: Tensors that ranks hold in parts; with sharded parameters none is frozen.
        elements: Elements of the largest stage of these schemes.
        trained: Trained elements of the largest stage of these schemes.
    """
    whole, schemes = Places(elements), list(schemes)
    if sharding == "none":
        return BufferPlaces(whole, Places(trained))
    # A tied embedding's gradient is complete once the backward reaches the embedding.
    gradients = _in_parts(parameters, schemes, frozenset())
    if sharding == "gradients":
        return BufferPlaces(whole, gradients)
    rows = parameters.table.parameters
    staying = frozenset(row.layer_groups[0] for row in rows if len(row.layer_groups) > 1)
    return BufferPlaces(_in_parts(parameters, schemes, staying), gradients)


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


def check_all_trained(sharding: ShardingKind, parameters: ModelParameters) -> None:
    """Check that no parameter is frozen where parameters are sharded: links do not count frozen ones.

    Raises:
        InvalidInputError: Parameters are sharded, and some are frozen (code `config_value`).
    """
    frozen = [name for name in parameters.names if not parameters.is_trained(name)]
    if sharding == "parameters" and frozen:
        message = (
            f"train.sharding is 'parameters', but {len(frozen)} parameters are frozen, the first of them "
            f"{frozen[0]}; set train.sharding = 'gradients', or leave out train.frozen and lora"
        )
        raise InvalidInputError(message, code="config_value")


def _in_parts(parameters: ModelParameters, schemes: Iterable[Scheme], staying: frozenset[int]) -> Places:
    """Lay out a sharded buffer for the trained buckets of any of these schemes."""
    largest = [0] * (BUFFERS + 1)
    for scheme in schemes:
        for bucket, size in _largest_buckets(parameters, scheme).items():
            turn = _turn(bucket, staying)
            largest[turn] = max(largest[turn], size)
    ends = list(accumulate(largest, initial=0))
    return Places(ends[-1], tuple(ends[:-1]), staying)


def _turn(bucket: int, staying: frozenset[int]) -> int:
    """Return the place of a bucket's part among the parts of a sharded buffer."""
    return BUFFERS if bucket in staying else bucket % BUFFERS


@lru_cache
def _largest_buckets(parameters: ModelParameters, scheme: Scheme) -> Counter[int]:
    """Return the most trained elements of each bucket on any rank of a scheme without stages."""
    largest = Counter[int]()
    for position in Position.all(scheme):
        if position.context_rank:
            continue
        sizes = Counter[int]()
        for piece in local_slices(parameters.table, position):
            if parameters.trained[piece.parameter]:
                sizes[_bucket_of(parameters, piece)] += piece.elements
        largest |= sizes
    return largest


def _bucket_of(parameters: ModelParameters, piece: LocalSlice) -> int:
    """Return the bucket of a parameter: its first layer group."""
    return parameters.table.parameters[piece.parameter].layer_groups[0]
