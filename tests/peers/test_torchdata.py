"""torchdata's `StatefulDataLoader`; the cases follow its tests of `state_dict` with samplers."""

import json
from typing import Any

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from batching.drawn import long_tail, sampler
from helpers import refused

LENGTHS = long_tail(100)


def loader(workers: int, ranks: int = 2, **options: Any) -> StatefulDataLoader[list[int]]:
    one = sampler(LENGTHS, ranks=ranks, rank=ranks - 1)
    return StatefulDataLoader(
        torch.arange(100), batch_sampler=one, collate_fn=torch.stack, num_workers=workers, **options
    )


def batches(one: StatefulDataLoader[list[int]]) -> list[list[int]]:
    return [batch.tolist() for batch in one]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("done", [0, 1, 4])
def test_a_loaded_state_continues_after_the_last_batch(workers: int, done: int) -> None:
    expected = batches(loader(workers))
    assert expected == list(sampler(LENGTHS, rank=1))
    first = loader(workers)
    found = iter(first)
    assert [next(found).tolist() for _ in range(done)] == expected[:done]
    second = loader(workers)
    second.load_state_dict(first.state_dict())
    assert batches(second) == expected[done:]


@pytest.mark.parametrize("workers", [0, 2])
def test_after_a_resumed_epoch_comes_the_next_one(workers: int) -> None:
    first = loader(workers)
    found = iter(first)
    for _ in range(3):
        next(found)
    second = loader(workers)
    second.load_state_dict(first.state_dict())
    batches(second)
    expected = sampler(LENGTHS, rank=1)
    expected.set_epoch(1)
    assert batches(second) == list(expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_at_the_end_of_an_epoch_begins_the_next_one(workers: int) -> None:
    first = loader(workers)
    batches(first)
    state = first.state_dict()
    expected = sampler(LENGTHS, rank=1)
    expected.set_epoch(1)
    second = loader(workers)
    second.load_state_dict(state)
    assert batches(second) == list(expected)


@pytest.mark.parametrize("done", [0, 1, 5])
@pytest.mark.parametrize("options", [{"persistent_workers": True}, {"snapshot_every_n_steps": 3}])
def test_worker_processes_of_every_kind_continue(options: dict[str, Any], done: int) -> None:
    expected = batches(loader(0))
    first = loader(2, **options)
    found = iter(first)
    for _ in range(done):
        next(found)
    state = first.state_dict()
    assert [batch.tolist() for batch in found] == expected[done:]
    second = loader(2, **options)
    second.load_state_dict(state)
    assert batches(second) == expected[done:]


def test_a_state_is_plain_json_and_is_loaded_into_the_same_loader() -> None:
    one = loader(0)
    expected = batches(loader(0))
    found = iter(one)
    for _ in range(4):
        next(found)
    state = json.loads(json.dumps(one.state_dict()))
    list(found)
    for _ in range(2):
        one.load_state_dict(state)
        assert batches(one) == expected[4:]


def test_a_state_of_another_sampler_is_refused() -> None:
    other = StatefulDataLoader(
        torch.arange(99), batch_sampler=sampler(LENGTHS[:99], rank=1), collate_fn=torch.stack
    )
    one = loader(0)
    one.load_state_dict(other.state_dict())
    with refused("checkpoint_mismatch", "sequences = 99", 100):
        batches(one)


@pytest.mark.parametrize("done", [4, 9])
@pytest.mark.parametrize(
    ("workers", "options"),
    [(0, {}), (2, {}), (2, {"persistent_workers": True}), (2, {"snapshot_every_n_steps": 3})],
)
def test_steps_are_grouped_from_the_loaded_state(workers: int, options: dict[str, Any], done: int) -> None:
    first = loader(workers, **options)
    found = iter(first)
    for _ in range(done):
        next(found)
    whole = sampler(LENGTHS, rank=1)
    places = [
        (step.index, part.tolist()) for step in map(whole.step, range(whole.num_steps)) for part in step.own
    ]
    for asked in (False, True):
        second = loader(workers, **options)
        second.load_state_dict(first.state_dict())
        if asked:
            # torchdata makes the iterator here.
            second.state_dict()
        one: Any = second.batch_sampler
        grouped = [(step.index, batch.tolist()) for step, group in one.group(second) for batch in group]
        assert grouped == places[done:]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_inside_of_a_step_is_refused(workers: int) -> None:
    first = loader(workers)
    found = iter(first)
    for _ in range(5):
        next(found)
    second = loader(workers)
    second.load_state_dict(first.state_dict())
    one: Any = second.batch_sampler
    with refused("checkpoint_mismatch", "inside step 2 of epoch 0, after 1 of its batches"):
        next(one.group(second))


@pytest.mark.parametrize(("saved", "loaded"), [(3, 1), (5, 2), (1, 3)])
def test_steps_are_grouped_under_another_number_of_steps_between_snapshots(saved: int, loaded: int) -> None:
    """While torchdata skips the batches since the saved snapshot, it takes snapshots of its own."""
    first = loader(2, snapshot_every_n_steps=saved)
    found = iter(first)
    for _ in range(4):
        next(found)
    state = first.state_dict()
    whole = sampler(LENGTHS, rank=1)
    places = [(index, part.tolist()) for index in range(whole.num_steps) for part in whole.step(index).own]
    for asked in (False, True):
        second = loader(2, snapshot_every_n_steps=loaded)
        second.load_state_dict(state)
        if asked:
            second.state_dict()
        one: Any = second.batch_sampler
        grouped = [(step.index, batch.tolist()) for step, group in one.group(second) for batch in group]
        assert grouped == places[4:]


def states_after_steps(ranks: int, snapshots: int) -> list[dict[str, Any]]:
    first = loader(2, ranks=ranks, snapshot_every_n_steps=snapshots)
    one: Any = first.batch_sampler
    return [first.state_dict() for _, group in one.group(first) if list(group)]


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (4, 2)])
def test_a_state_after_a_step_continues_on_other_ranks(before: int, after: int) -> None:
    states = states_after_steps(before, 1)
    for index, state in enumerate(states[:-1]):
        second = loader(2, ranks=after)
        second.load_state_dict(state)
        one: Any = second.batch_sampler
        found = [step.index for step, _ in one.group(second, epochs=1)]
        assert found == list(range(index + 1, one.count_steps(0)))


@pytest.mark.parametrize("place", [2, -1])
@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4)])
@pytest.mark.parametrize("snapshots", [1, 3, 50])
def test_batches_since_a_snapshot_are_refused_on_other_ranks(
    before: int, after: int, place: int, snapshots: int
) -> None:
    """The same number of batches is another number of steps, also up to the end of an epoch."""
    state = states_after_steps(before, 50)[place]
    second = loader(2, ranks=after, snapshot_every_n_steps=snapshots)
    second.load_state_dict(state)
    one: Any = second.batch_sampler
    with refused("checkpoint_mismatch", "batches since a snapshot", "snapshot_every_n_steps=1"):
        next(one.group(second))


def test_a_snapshot_of_other_ranks_is_refused_where_batches_would_be_counted_from_it() -> None:
    """torchdata keeps the snapshot of the state until the next one."""
    state = states_after_steps(2, 3)[2]
    assert state["_steps_since_snapshot"] == 0
    second = loader(2, ranks=4, snapshot_every_n_steps=3)
    second.load_state_dict(state)
    one: Any = second.batch_sampler
    with refused("checkpoint_mismatch", "batches since a snapshot"):
        next(one.group(second))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_look_at_the_first_batch_does_not_refuse_a_state_of_a_later_epoch(workers: int) -> None:
    first = loader(workers)
    batches(first)
    found = iter(first)
    for _ in range(4):
        next(found)
    second = loader(workers)
    one: Any = second.batch_sampler
    for _, group in one.group(second):
        next(group)
        break
    second.load_state_dict(first.state_dict())
    step, _ = next(one.group(second, epochs=2))
    assert (step.epoch, step.index) == (1, 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_chosen_before_a_state_of_another_one_is_refused(workers: int) -> None:
    """A loop over `range(epochs)` would train the epoch of the state twice."""
    first = loader(workers)
    batches(first)
    found = iter(first)
    next(found)
    second = loader(workers)
    second.load_state_dict(first.state_dict())
    one: Any = second.batch_sampler
    one.set_epoch(0)
    with refused("argument_invalid", "set_epoch chose epoch 0", "epoch 1"):
        next(one.group(second))


def test_a_state_that_is_loaded_after_the_loader_began_is_refused() -> None:
    first = loader(2)
    first.state_dict()
    one: Any = first.batch_sampler
    one.load_state_dict(one.state_at(2, epoch=1))
    with refused("argument_invalid", "load the state before"):
        next(one.group(first, epochs=3))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("asked", [False, True])
def test_a_state_at_the_end_of_the_run_has_no_steps(workers: int, *, asked: bool) -> None:
    first = loader(workers)
    for _ in range(2):
        batches(first)
    second = loader(workers)
    second.load_state_dict(first.state_dict())
    if asked:
        second.state_dict()
    one: Any = second.batch_sampler
    assert list(one.group(second, epochs=2)) == []
