"""The places of gradients in a rank's gradient buffer.

*Whole* gradients have the places of their parameters. *Sharded* gradients are those of two layer groups: the
buckets of even number share one part of the buffer and those of odd number the other, so a backward fills one
while the other leaves for its owners.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hydraulis._core import BucketTransfer, Exchange, LocalSlice, Position, Scheme, local_slices
from hydraulis.config.kinds import GradientKind
from hydraulis.errors import InvalidInputError
from hydraulis.runtime.state.parameters import ModelParameters

BUFFERS = 2
"""Parts of a buffer of sharded gradients."""


class PlacedExchange(NamedTuple):
    """An exchange whose near segments are places in the gradient buffer; see the core's `Exchange`."""

    near: NDArray[np.int64]
    near_counts: NDArray[np.int64]
    far: NDArray[np.int64]
    far_counts: NDArray[np.int64]


class PlacedTransfer(NamedTuple):
    """A bucket's exchanges, the one inside the node with its places; see the core's `BucketTransfer`."""

    inside: Exchange | PlacedExchange
    relayed: int
    between: Exchange | None


@dataclass(frozen=True, slots=True)
class GradientPlaces:
    """The layout of a rank's gradient buffer.

    Attributes:
        elements: Number of elements of the buffer.
        starts: First element of each part of a buffer of sharded gradients; None for whole gradients.
    """

    elements: int
    starts: tuple[int, int] | None = None

    def of_slices(self, parameters: ModelParameters, slices: Sequence[LocalSlice]) -> dict[int, int]:
        """Return the first element of each trained parameter's gradient, by the parameter's table index.

        Args:
            parameters: The model's parameters.
            slices: Slices of the rank's stage, in the order of the local shard.
        """
        trained = [piece for piece in slices if parameters.trained[piece.parameter]]
        if self.starts is None:
            return {piece.parameter: piece.offset for piece in trained}
        first: dict[int, int] = {}
        for piece in trained:
            first.setdefault(_bucket_of(parameters, piece), piece.offset)
        return {
            piece.parameter: piece.offset + self._shift(number, first[number])
            for piece in trained
            for number in [_bucket_of(parameters, piece)]
        }

    def of_transfer(self, bucket: int, transfer: BucketTransfer) -> BucketTransfer | PlacedTransfer:
        """Return a bucket's transfer with the places of its gradients."""
        if self.starts is None:
            return transfer
        inside, near = transfer.inside, transfer.inside.near
        if len(near):
            near = near.copy()
            near[:, 0] += self._shift(bucket, int(near[:, 0].min()))
        placed = PlacedExchange(near, inside.near_counts, inside.far, inside.far_counts)
        return PlacedTransfer(placed, transfer.relayed, transfer.between)

    def _shift(self, bucket: int, first: int) -> int:
        """Return the distance of a bucket's gradients from its parameters, which begin at `first`."""
        assert self.starts is not None
        return self.starts[bucket % BUFFERS] - first


def gradient_places(
    parameters: ModelParameters, schemes: Iterable[Scheme], gradients: GradientKind, trained: int
) -> GradientPlaces:
    """Lay out the buffer for the gradients of any of these schemes.

    Args:
        parameters: The model's parameters.
        schemes: Every scheme that a plan of the run may use; without stages for sharded gradients.
        gradients: Kind of gradients.
        trained: Trained elements of the largest stage of these schemes.
    """
    if gradients == "whole":
        return GradientPlaces(trained)
    even, odd = (
        max(sizes) for sizes in zip(*(_largest_buckets(parameters, one) for one in schemes), strict=True)
    )
    return GradientPlaces(even + odd, (0, even))


def check_gradients(gradients: GradientKind, schemes: Iterable[Scheme]) -> None:
    """Check that schemes admit the kind of gradients.

    With stages, a backward that waits for its buffer would stop the stages on which the exchange depends.

    Raises:
        InvalidInputError: Gradients are sharded, and a scheme has pipeline stages (code
            `scheme_model_mismatch`).
    """
    staged = [scheme for scheme in schemes if scheme.pp > 1]
    if gradients == "sharded" and staged:
        message = (
            f"scheme {staged[0]} has {staged[0].pp} pipeline stages, and train.gradients = 'sharded' needs "
            "schemes without stages: name others in planner.strategies and planner.schemes, or set "
            "train.gradients = 'whole'"
        )
        raise InvalidInputError(message, code="scheme_model_mismatch")


@lru_cache
def _largest_buckets(parameters: ModelParameters, scheme: Scheme) -> tuple[int, int]:
    """Return the most trained elements of a bucket of even and of odd number on any rank of a scheme."""
    largest = [0] * BUFFERS
    for position in Position.all(scheme):
        if position.context_rank:
            continue
        sizes: defaultdict[int, int] = defaultdict(int)
        for piece in local_slices(parameters.table, position):
            if parameters.trained[piece.parameter]:
                sizes[_bucket_of(parameters, piece)] += piece.elements
        for number, size in sizes.items():
            largest[number % BUFFERS] = max(largest[number % BUFFERS], size)
    return largest[0], largest[1]


def _bucket_of(parameters: ModelParameters, piece: LocalSlice) -> int:
    """Return the bucket of a trained parameter: its first layer group."""
    return parameters.table.parameters[piece.parameter].layer_groups[0]
