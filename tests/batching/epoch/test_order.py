import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydraulis.batching.epoch.order import EpochOrder


@given(n=st.integers(1, 5000), seed=st.integers(0, 2**80), epoch=st.integers(0, 10**6))
def test_an_epoch_has_every_sequence_once(n: int, seed: int, epoch: int) -> None:
    assert sorted(EpochOrder(n, seed, epoch)(0, n).tolist()) == list(range(n))


@given(n=st.integers(1, 3000), data=st.data())
def test_a_range_equals_the_same_part_of_the_whole_order(n: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, n))
    stop = data.draw(st.integers(start, n))
    order = EpochOrder(n, 5, 2)
    assert order(start, stop).tolist() == order(0, n)[start:stop].tolist()


def test_the_permutation_never_changes() -> None:
    """A stored checkpoint depends on it."""
    assert EpochOrder(10, seed=0, epoch=0)(0, 10).tolist() == [5, 8, 3, 2, 7, 0, 6, 4, 1, 9]
    assert EpochOrder(10**9, seed=7, epoch=3)(5, 8).tolist() == [407563546, 476649248, 322382738]


def test_seeds_and_epochs_give_other_permutations() -> None:
    drawn = {tuple(EpochOrder(50, seed, epoch)(0, 50)) for seed in range(15) for epoch in range(15)}
    assert len(drawn) == 225


@pytest.mark.parametrize("n", [3, 5, 24])
def test_every_sequence_takes_every_place_equally_often(n: int) -> None:
    epochs = 1000
    counts = np.zeros((n, n))
    for epoch in range(epochs):
        counts[np.arange(n), EpochOrder(n, 1, epoch)(0, n)] += 1
    expected = epochs / n
    chi2 = ((counts - expected) ** 2 / expected).sum()
    degrees = (n - 1) ** 2
    # Six standard deviations of a chi-squared distribution.
    assert chi2 < degrees + 6 * np.sqrt(2 * degrees)


def test_neighbours_do_not_stay_neighbours() -> None:
    order = EpochOrder(10_000, 3, 1)(0, 10_000)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.05


def test_without_shuffling_the_order_is_that_of_the_data_set() -> None:
    assert EpochOrder(9, 4, 2, shuffle=False)(2, 6).tolist() == [2, 3, 4, 5]
