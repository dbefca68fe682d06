from itertools import count, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import refused
from hydraulis.data.sampling.epoch_order import SequenceIndices
from hydraulis.data.sampling.sampler import BatchSampler, batches_in_order

LENGTHS = st.lists(st.integers(1, 50), min_size=1, max_size=40)
BUDGETS = st.integers(1, 100)
SEEDS = st.integers(0, 2**32)
STEPS = 10

# A loaded machine is no failure.


def sampler_of(lengths: list[int], budget: int, seed: int) -> BatchSampler:
    return BatchSampler(np.array(lengths, dtype=np.int64), budget, seed)


def stream_of(sampler: BatchSampler, num_documents: int) -> list[int]:
    stream: list[int] = []
    for step in count():
        stream += sampler.batch(step).sequences.tolist()
        if len(stream) >= num_documents:
            return stream[:num_documents]
    raise AssertionError


@given(LENGTHS, BUDGETS, SEEDS)
def test_every_document_comes_once_per_epoch(lengths: list[int], budget: int, seed: int) -> None:
    num_documents = len(lengths)
    stream = stream_of(sampler_of(lengths, budget, seed), 3 * num_documents)
    for epoch in range(3):
        documents = stream[epoch * num_documents : (epoch + 1) * num_documents]
        assert sorted(documents) == list(range(num_documents))


@given(LENGTHS, BUDGETS, SEEDS)
def test_a_batch_ends_with_the_document_that_reaches_the_budget(
    lengths: list[int], budget: int, seed: int
) -> None:
    sampler = sampler_of(lengths, budget, seed)
    for step in range(STEPS):
        tokens = [lengths[document] for document in sampler.batch(step).sequences]
        assert sum(tokens) >= budget
        assert sum(tokens[:-1]) < budget


@given(LENGTHS, BUDGETS, SEEDS, st.lists(st.integers(0, STEPS), min_size=1, max_size=10))
def test_any_order_gives_the_batches_of_the_sequential_order(
    lengths: list[int], budget: int, seed: int, steps: list[int]
) -> None:
    sequential = sampler_of(lengths, budget, seed)
    expected = [sequential.batch(step).sequences.tolist() for step in range(STEPS + 1)]
    random_access = sampler_of(lengths, budget, seed)
    for step in steps:
        batch = random_access.batch(step)
        assert batch.index == step
        assert batch.sequences.tolist() == expected[step]


@given(LENGTHS, BUDGETS, SEEDS)
def test_the_epoch_is_that_of_the_first_document(lengths: list[int], budget: int, seed: int) -> None:
    sampler = sampler_of(lengths, budget, seed)
    num_before = 0
    for step in range(STEPS):
        batch = sampler.batch(step)
        assert batch.epoch == num_before // len(lengths)
        num_before += len(batch.sequences)


def test_the_seed_and_the_epoch_fix_the_order() -> None:
    lengths = [1] * 100
    one_epoch_per_batch = sampler_of(lengths, 100, seed=1)
    first, second = (one_epoch_per_batch.batch(step).sequences.tolist() for step in (0, 1))
    other_seed = sampler_of(lengths, 100, seed=2).batch(0).sequences.tolist()
    again = sampler_of(lengths, 100, seed=1).batch(0).sequences.tolist()
    assert first == again
    assert len({tuple(first), tuple(second), tuple(other_seed)}) == 3


def test_the_order_equals_numpys_permutation() -> None:
    documents = sampler_of([1] * 50, 50, seed=7).batch(3).sequences
    assert documents.dtype == np.int64
    assert documents.tolist() == np.random.default_rng([7, 3]).permutation(50).tolist()


def test_a_batch_may_span_several_epochs() -> None:
    batch = sampler_of([1, 1], 5, seed=0).batch(0)
    assert np.bincount(batch.sequences).tolist() in ([2, 3], [3, 2])


def test_a_late_step_shuffles_no_epoch_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    make_epoch = BatchSampler._make_epoch

    def counted(sampler: BatchSampler, epoch: int) -> Any:
        made.append(epoch)
        return make_epoch(sampler, epoch)

    monkeypatch.setattr(BatchSampler, "_make_epoch", counted)
    sampler = sampler_of([3] * 100, 20, seed=0)
    sampler.batch(250)
    assert made == sorted(set(made))
    num_made = len(made)
    for first, second in pairwise(range(240, 250)):
        sampler.batch(second)
        sampler.batch(first)
    # The border of two epochs is among these steps, so the cache must hold both.
    assert sampler.batch(240).epoch < sampler.batch(249).epoch
    assert len(made) <= num_made + 2


def test_an_order_that_stays_empty_is_refused() -> None:
    def order(epoch: int) -> SequenceIndices:
        return np.arange(4) if epoch == 0 else np.zeros(0, dtype=np.int64)

    sampler = BatchSampler(np.full(4, 10), 40, 0, order=order)
    assert len(sampler.batch(0).sequences) == 4
    with refused("argument_invalid", "have no sequence", "weights"):
        sampler.batch(1)


@pytest.mark.parametrize(("epochs", "holds"), [(None, 2.5), (2, 2.0), (3, 2.5)])
def test_the_number_of_epochs_of_a_batch_is_counted(epochs: int | None, holds: float) -> None:
    sizes = np.full(4, 10)
    assert BatchSampler(sizes, 100, 0, epochs=epochs).epochs_per_batch == holds


@pytest.mark.parametrize(
    ("lengths", "budget", "seed", "message"),
    [
        ([], 1, 0, "sizes holds 0 sequences"),
        ([3, 0, 2], 1, 0, "sequence 1 has size 0"),
        ([3], 0, 0, "per_batch = 0"),
        ([3], 1, -1, "seed = -1"),
        (
            [2],
            100_000_000,
            0,
            "the limit is 30,000 times",
        ),
    ],
)
def test_invalid_arguments_are_refused(lengths: list[int], budget: int, seed: int, message: str) -> None:
    with refused("argument_invalid", message):
        sampler_of(lengths, budget, seed)


def test_refuses_a_negative_step() -> None:
    with refused("argument_invalid", "batch -1"):
        sampler_of([1], 1, 0).batch(-1)


@given(LENGTHS, BUDGETS, SEEDS)
def test_an_end_that_does_not_fill_a_batch_is_dropped_and_counted(
    lengths: list[int], budget: int, seed: int
) -> None:
    sizes = np.array(lengths, dtype=np.int64)
    sampler = BatchSampler(sizes, budget, seed, epoch_end="drop")
    if sum(lengths) < budget:
        with refused("argument_invalid", f"{budget}", f"{len(lengths)} sequences"):
            sampler.batch(0)
        return
    seen: dict[int, list[int]] = {0: []}
    for step in range(STEPS):
        batch = sampler.batch(step)
        assert sizes[batch.sequences].sum() >= budget
        assert len(set(batch.sequences.tolist())) == len(batch.sequences)
        seen.setdefault(batch.epoch, []).extend(batch.sequences.tolist())
        dropped = sum(len(lengths) - len(seen[epoch]) for epoch in range(batch.epoch))
        assert sampler.num_dropped(step) == dropped
    assert all(len(set(documents)) == len(documents) for documents in seen.values())
    assert BatchSampler(sizes, budget, seed).num_dropped(STEPS) == 0


def test_batches_of_sequences_are_equally_many() -> None:
    sampler = BatchSampler(np.ones(10, dtype=np.int64), 4, 0)
    assert [len(sampler.batch(step).sequences) for step in range(5)] == [4] * 5


def test_epochs_give_a_number_of_steps() -> None:
    # 5 batches of 4 are two epochs of 10; the end of one of them is dropped, or not.
    sizes = np.ones(10, dtype=np.int64)
    assert BatchSampler(sizes, 4, 0).num_steps(2) == 5
    assert BatchSampler(sizes, 4, 0).num_steps(1) == 3
    assert BatchSampler(sizes, 4, 0, epoch_end="drop").num_steps(2) == 4


@given(LENGTHS, BUDGETS, st.integers(1, 3), st.sampled_from(["continue", "drop"]))
def test_a_sampler_ends_after_the_given_epochs(
    lengths: list[int], budget: int, epochs: int, epoch_end: Any
) -> None:
    sizes = np.array(lengths, dtype=np.int64)
    if epoch_end == "drop" and sum(lengths) < budget:
        return
    sampler = BatchSampler(sizes, budget, 0, epoch_end=epoch_end, epochs=epochs)
    steps = sampler.num_steps(epochs)
    seen = np.concatenate([sampler.batch(step).sequences for step in range(steps)])
    times = np.bincount(seen, minlength=len(lengths))
    if epoch_end == "drop":
        assert times.max() <= epochs
        assert times.sum() + sampler.num_dropped(steps) == epochs * len(lengths)
    else:
        assert set(times) == {epochs}
    # All but the last are those of a run without an end.
    endless = BatchSampler(sizes, budget, 0, epoch_end=epoch_end)
    for step in range(steps - 1):
        assert sampler.batch(step).sequences.tolist() == endless.batch(step).sequences.tolist()
    assert 0 < len(sampler.batch(steps - 1).sequences) <= len(endless.batch(steps - 1).sequences)
    assert sampler.batch(steps).sequences.tolist() == sampler.batch(steps + 2).sequences.tolist() == []


@given(LENGTHS, BUDGETS)
def test_without_shuffling_every_sequence_comes_once(lengths: list[int], budget: int) -> None:
    batches = batches_in_order(np.array(lengths, dtype=np.int64), budget)
    assert np.concatenate(batches).tolist() == list(range(len(lengths)))
    for batch in batches[:-1]:
        tokens = [lengths[document] for document in batch]
        assert sum(tokens) >= budget > sum(tokens[:-1])
