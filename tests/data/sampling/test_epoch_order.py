from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydraulis.data.sampling.epoch_order import Mixture, Shuffle
from hydraulis.data.sampling.sampler import BatchSampler

SOURCES = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=20), min_size=1, max_size=4)


def mixture_of(sources: list[list[int]], weights: list[float], seed: int = 0) -> Mixture:
    bounds = np.cumsum([0, *map(len, sources)], dtype=np.int64)
    lengths = np.array([length for source in sources for length in source], dtype=np.int64)
    return Mixture(bounds, lengths, weights, seed)


def test_a_shuffle_equals_numpys_permutation() -> None:
    assert Shuffle(50, 7)(3).tolist() == np.random.default_rng([7, 3]).permutation(50).tolist()


@given(SOURCES, st.integers(0, 99), st.data())
def test_no_sequence_of_a_source_comes_twice_more_often_than_another(
    sources: list[list[int]], seed: int, data: st.DataObject
) -> None:
    weights = [data.draw(st.floats(0.05, 20)) for _ in sources]
    mixture = mixture_of(sources, weights, seed)
    bounds = np.cumsum([0, *map(len, sources)])
    seen = np.concatenate([mixture(epoch) for epoch in range(4)])
    times = np.bincount(seen, minlength=bounds[-1])
    for start, stop in pairwise(bounds):
        assert times[start:stop].max() - times[start:stop].min() <= 1
    # Any epoch can be asked for by itself.
    assert mixture_of(sources, weights, seed)(3).tolist() == mixture(3).tolist()


def test_tokens_come_in_proportion_to_the_weights() -> None:
    rng = np.random.default_rng(0)
    sources = [rng.integers(1, 50, size).tolist() for size in (4000, 500, 900)]
    mixture = mixture_of(sources, [1.0, 2.0, 5.0])
    lengths = np.array([length for source in sources for length in source])
    source_of = np.repeat(np.arange(3), [len(source) for source in sources])
    epochs = [mixture(epoch) for epoch in range(8)]
    seen = np.concatenate(epochs)
    tokens = np.bincount(source_of[seen], weights=lengths[seen])
    assert tokens / tokens.sum() == pytest.approx([1 / 8, 2 / 8, 5 / 8], abs=0.005)
    assert tokens.sum() == pytest.approx(8 * lengths.sum(), rel=0.01)
    # Mixed throughout an epoch, not one source after another.
    first, second = np.array_split(source_of[epochs[0]], 2)
    assert np.bincount(first) / len(first) == pytest.approx(np.bincount(second) / len(second), abs=0.03)


@given(SOURCES, st.integers(0, 99), st.sampled_from([1.0, 0.1, 1 / 3, 1e300]))
def test_weights_in_proportion_to_the_tokens_give_each_sequence_once(
    sources: list[list[int]], seed: int, unit: float
) -> None:
    mixture = mixture_of(sources, [sum(source) * unit for source in sources], seed)
    for epoch in (0, 1, 2, 1000):
        assert sorted(mixture(epoch).tolist()) == list(range(sum(map(len, sources))))


def test_weights_whose_sum_overflows_are_equal_weights() -> None:
    sources = [[3] * 40, [3] * 10]
    assert mixture_of(sources, [1e308, 1e308])(2).tolist() == mixture_of(sources, [1.0, 1.0])(2).tolist()


def test_a_sampler_takes_its_batches_from_the_mixture() -> None:
    sources = [[3] * 40, [3] * 10]
    sampler = BatchSampler(np.full(50, 3), 30, 0, order=mixture_of(sources, [1.0, 1.0]))
    seen = np.concatenate([sampler.batch(step).sequences for step in range(20)])
    assert np.count_nonzero(seen >= 40) == pytest.approx(100, abs=10)
