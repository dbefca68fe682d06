import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import refused
from hydraulis.batching.step_planner import total_time
from hydraulis.batching.weighted import plan_weighted


@settings(deadline=None, max_examples=60)
@given(
    items=st.lists(st.tuples(st.integers(1, 100), st.floats(0, 50)), min_size=1, max_size=60),
    ranks=st.integers(1, 5),
    by_slot=st.booleans(),
)
def test_every_item_is_once_in_equal_numbers_of_micro_batches_under_the_cap(
    items: list[tuple[int, float]], ranks: int, *, by_slot: bool
) -> None:
    tokens, times = np.array([one for one, _ in items]), np.array([other for _, other in items])
    parts = plan_weighted(tokens, times, ranks=ranks, cap_tokens=100, count=None, by_slot=by_slot)
    assert len({len(rank) for rank in parts}) == 1
    assert sorted(i for rank in parts for part in rank for i in part.tolist()) == list(range(len(items)))
    assert all(tokens[part].sum() <= 100 for rank in parts for part in rank)


@pytest.mark.parametrize("barrier", ["step", "micro_batch"])
def test_ranks_take_about_the_same_time(barrier: str) -> None:
    rng = np.random.default_rng(0)
    tokens, times = rng.integers(1, 100, 400), rng.uniform(0, 10, 400)
    parts = plan_weighted(tokens, times, ranks=8, cap_tokens=900, count=4, by_slot=barrier == "micro_batch")
    totals = [[float(times[part].sum()) for part in rank] for rank in parts]
    assert total_time(totals, "step" if barrier == "step" else "micro_batch") < 1.02 * times.sum() / 8


def test_items_that_do_not_fit_are_refused() -> None:
    tokens, times = np.array([60, 60, 60]), np.ones(3)
    with refused("batch_unplaceable", 3, "180", "1 x 2"):
        plan_weighted(tokens, times, ranks=1, cap_tokens=100, count=2, by_slot=True)
    with refused("sequence_too_long", "item 0", 60, 50):
        plan_weighted(tokens, times, ranks=1, cap_tokens=50, count=None, by_slot=True)
