"""Contributions are added up where they arrive; those of a rank alone are added from where they are."""

import numpy as np
import pytest
import torch

from hydraulis.runtime.redistribute.exchange_groups import ExchangeGroup
from hydraulis.runtime.redistribute.summed_exchanges import SummedExchanges
from hydraulis.runtime.state.places import PlacedExchange

ALONE = ExchangeGroup(None, torch.device("cpu"))


def exchange(near: list[tuple[int, int]], far: list[tuple[int, int]]) -> PlacedExchange:
    """Build a rank's exchange with itself, from offsets and numbers of elements."""
    segments = [np.array(side, dtype=np.int64) for side in (near, far)]
    counts = [np.array([side[:, 1].sum()]) for side in segments]
    return PlacedExchange(segments[0], counts[0], segments[1], counts[1])


@pytest.mark.parametrize(
    ("near", "expected"),
    [
        ([(2, 3), (5, 1)], [105.0, 2.0, 3.0, 4.0]),
        # Out of order, they are permuted first.
        ([(5, 1), (2, 3)], [104.0, 5.0, 2.0, 3.0]),
    ],
)
def test_a_rank_alone_adds_its_contributions_without_a_copy(
    near: list[tuple[int, int]], expected: list[float]
) -> None:
    sums = SummedExchanges(ALONE, torch.zeros(0))
    sums.reserve(4)
    for staging in sums.staging:
        staging.fill_(torch.nan)
    source, target = torch.arange(8.0), torch.tensor([100.0, 0.0, 0.0, 0.0])
    sums.start(exchange(near, [(1, 3), (0, 1)]), source, target)
    assert sums.has_arrived
    assert sums.complete() is target
    assert target.tolist() == expected
    # Only a permutation takes staging.
    unused = [bool(staging.isnan().all()) for staging in sums.staging]
    assert unused.count(True) == (2 if near[0][0] == 2 else 1)
