"""The places of a plan's replicas, and values that depend on them alone.

A run uses few strategies, so most plans place their replicas as an earlier plan did; at 16,384 ranks the list
of a plan's places takes 5 ms of CPU time, and the transfers between them 2 s (benches/scale.py).
"""

from array import array
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from hydraulis._core import Plan, Scheme

T = TypeVar("T")


class Placement(NamedTuple):
    """The places of a plan's replicas; equal ones have the same groups, neighbours and transfers.

    Attributes:
        schemes: Scheme of each replica.
        ranks: Ranks of all replicas, one replica after another, each in the order of its positions.
        is_used: Whether each replica has micro-batches; the ranks of an idle one have no position.
    """

    schemes: list[Scheme]
    ranks: "array[int]"
    is_used: list[bool]


def placement_of(plan: Plan) -> Placement:
    """Return the places of a plan's replicas."""
    schemes, ranks, is_used = [], array("q"), []
    for replica in plan.replicas:
        schemes.append(replica.scheme)
        ranks.extend(replica.ranks)
        is_used.append(bool(replica.micro_batches))
    return Placement(schemes, ranks, is_used)


class ByPlacement(Generic[T]):
    """Keeps the values of the placements that were used last.

    Args:
        most: Most values to keep.
    """

    def __init__(self, most: int = 8) -> None:
        self._most = most
        self._entries: list[tuple[Placement, T]] = []

    def get(self, placement: Placement, make: Callable[[], T]) -> T:
        """Return the value of a placement, made if none is kept."""
        place = next((index for index, (kept, _) in enumerate(self._entries) if kept == placement), None)
        value = make() if place is None else self._entries.pop(place)[1]
        self._entries = [(placement, value), *self._entries][: self._most]
        return value
