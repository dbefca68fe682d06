import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batching.drawn import COST, long_tail
from helpers import refused
from hydraulis.batching.adapters.schedules import partition, plan_schedule


@settings(max_examples=80)
@given(
    lengths=st.lists(st.integers(1, 1500), min_size=40, max_size=120),
    ranks=st.integers(1, 4),
    multiple=st.integers(1, 3),
)
def test_every_rank_has_the_same_multiple_of_micro_batches_under_the_cap(
    lengths: list[int], ranks: int, multiple: int
) -> None:
    # Short samples, so that they fill every micro-batch.
    lengths = lengths + [1] * ranks * multiple
    plan = plan_schedule(lengths, ranks=ranks, cap_tokens=1000, cost=COST, multiple_of=multiple)
    (count,) = {len(rank) for rank in plan}
    assert count % multiple == 0
    assert sorted(i for rank in plan for part in rank for i in part) == list(range(len(lengths)))
    for part in (part for rank in plan for part in rank):
        assert part
        assert len(part) == 1 or sum(lengths[i] for i in part) <= 1000


def test_ranks_take_equal_time() -> None:
    lengths = long_tail(400)
    plan = plan_schedule(lengths.tolist(), ranks=4, cap_tokens=1000, cost=COST)
    slots = zip(*([sum(COST.times(lengths[part])) for part in rank] for rank in plan), strict=True)
    assert sum(map(max, slots)) < 1.04 * COST.times(lengths).sum() / 4


def test_too_few_samples_are_refused() -> None:
    with refused("batch_unplaceable", 3, 4):
        plan_schedule([5, 6, 7], ranks=4, cap_tokens=10, cost=COST)


@given(
    weights=st.lists(st.integers(0, 10**6), min_size=1, max_size=60),
    parts=st.integers(1, 8),
    equal=st.booleans(),
)
def test_a_partition_has_every_item_once(weights: list[int], parts: int, *, equal: bool) -> None:
    weights = weights * parts
    found = partition(weights, parts, equal_size=equal)
    assert len(found) == parts
    assert sorted(item for part in found for item in part) == list(range(len(weights)))
    assert all(part and part == sorted(part) for part in found)
    assert not equal or len({len(part) for part in found}) == 1


@pytest.mark.parametrize("equal", [True, False])
def test_a_partition_is_balanced(equal: bool) -> None:  # noqa: FBT001
    weights = COST.times(long_tail(512, longest=4000))
    totals = [weights[part].sum() for part in partition(weights.tolist(), 8, equal_size=equal)]
    assert max(totals) < 1.02 * np.mean(totals)
