"""The sampler in torch's own data loader, with and without worker processes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from batching.collators.attention import made_samples
from batching.drawn import long_tail, sampler
from helpers import refused
from hydraulis.batching.collators import VarlenCollator

LENGTHS = long_tail(60, longest=80)
SAMPLES = made_samples(LENGTHS.tolist())


class Samples(Dataset[dict[str, Any]]):
    def __getitem__(self, index: int) -> dict[str, Any]:
        return SAMPLES[index]

    def __len__(self) -> int:
        return len(SAMPLES)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_yields_the_packed_micro_batches(workers: int) -> None:
    one = sampler(LENGTHS, rank=1, cap_tokens=400, pad_to=16)
    collate = VarlenCollator(pad_to=16)
    loader: DataLoader[Any] = DataLoader(
        Samples(), batch_sampler=one, collate_fn=collate, num_workers=workers
    )
    assert len(loader) == len(one)
    expected = [
        collate([SAMPLES[i] for i in part]) for index in range(one.num_steps) for part in one.step(index).own
    ]
    batches = list(loader)
    assert all(
        torch.equal(batch["input_ids"], other["input_ids"])
        for batch, other in zip(batches, expected, strict=True)
    )
    assert max(len(batch["input_ids"]) for batch in batches) <= 400
    assert one.epoch == 1


@pytest.mark.parametrize("barrier", ["step", "micro_batch"])
def test_steps_come_with_their_batches_and_their_targets(barrier: str) -> None:
    loaders = []
    for rank in range(2):
        one = sampler(LENGTHS, rank=rank, cap_tokens=200, barrier=barrier, sequences_per_step=20)
        loaders.append((one, DataLoader(Samples(), batch_sampler=one, collate_fn=VarlenCollator())))
    steps = [[(step, list(batches)) for step, batches in one.group(loader)] for one, loader in loaders]
    assert len(steps[0]) == 3
    for parts in zip(*steps, strict=True):
        assert len({step.targets for step, _ in parts}) == 1
        counted = sum(batch["num_targets"] for _, batches in parts for batch in batches)
        assert counted == parts[0][0].targets
        assert [len(batches) for _, batches in parts] == [len(step.own) for step, _ in parts]
    assert {one.epoch for one, _ in loaders} == {1}


def test_a_state_inside_of_a_step_is_refused() -> None:
    """The gradients of its first batches are lost, and a step's last reduction would be missed."""
    one = sampler(LENGTHS, rank=0, cap_tokens=200, sequences_per_step=20)
    state = one.state_at(1, batch=1, epoch=0)
    one.load_state_dict(state)
    loader = DataLoader(Samples(), batch_sampler=one, collate_fn=VarlenCollator())
    with refused(
        "checkpoint_mismatch", "inside step 1 of epoch 0, after 1 of its batches", "state_at(1, epoch=0)"
    ):
        next(one.group(loader))
    one.load_state_dict(one.state_at(1, epoch=0))
    assert [step.index for step, _ in one.group(loader)] == [1, 2]


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}], ids=str
)
def test_a_loaded_state_is_where_every_loader_begins(options: dict[str, Any]) -> None:
    """torch calls `iter(batch_sampler)` twice where there are worker processes."""
    whole = sampler(LENGTHS, rank=0, cap_tokens=200)
    expected = [[part.tolist() for part in whole.step(index).own] for index in range(whole.num_steps)]
    for is_grouped in (False, True):
        one = sampler(LENGTHS, rank=0, cap_tokens=200)
        loader: DataLoader[Any] = DataLoader(range(60), batch_sampler=one, collate_fn=list, **options)  # type: ignore[arg-type]
        one.load_state_dict(one.state_at(2, epoch=0))
        if is_grouped:
            found = [(step.index, list(batches)) for step, batches in one.group(loader)]
            assert found == list(enumerate(expected))[2:]
        else:
            assert list(loader) == [batch for step in expected[2:] for batch in step]
        assert one.epoch == 1
        again = [
            (step.epoch, step.index, len(list(batches)) == len(step.own))
            for step, batches in one.group(loader)
        ]
        assert again == [(1, index, True) for index in range(one.num_steps)]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_epochs_that_remain_are_grouped(workers: int) -> None:
    one = sampler(LENGTHS, rank=0, cap_tokens=200)
    places = [(epoch, index) for epoch in range(3) for index in range(one.count_steps(epoch))]
    loader: DataLoader[Any] = DataLoader(range(60), batch_sampler=one, collate_fn=list, num_workers=workers)  # type: ignore[arg-type]
    assert [(step.epoch, step.index) for step, _ in one.group(loader, epochs=3)] == places
    assert list(one.group(loader, epochs=3)) == []
    again = sampler(LENGTHS, rank=0, cap_tokens=200)
    again.load_state_dict(one.state_at(2, epoch=1))
    rest: DataLoader[Any] = DataLoader(range(60), batch_sampler=again, collate_fn=list, num_workers=workers)  # type: ignore[arg-type]
    found = [(step.epoch, step.index) for step, _ in again.group(rest, epochs=3)]
    assert found == places[places.index((1, 2)) :]
    with refused("argument_invalid", "epochs is -1"):
        again.group(rest, epochs=-1)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("left_at", [0, 3])
def test_an_epoch_that_the_loop_leaves_begins_again_however_far_the_loader_is(
    workers: int, left_at: int
) -> None:
    one = sampler(LENGTHS, rank=0, cap_tokens=200)
    loader: DataLoader[Any] = DataLoader(range(60), batch_sampler=one, collate_fn=list, num_workers=workers)  # type: ignore[arg-type]
    assert one.count_steps(0) == 4
    for step, _ in one.group(loader, epochs=2):
        if step.index == left_at:
            break
    assert [step.index for step, _ in one.group(loader, epochs=1)] == [0, 1, 2, 3]


@dataclass
class _Failing(Dataset[int]):
    """Fails at an item while a file exists."""

    file: Path
    at: int

    def __getitem__(self, index: int) -> int:
        if index == self.at and self.file.exists():
            message = "lost"
            raise OSError(message)
        return index

    def __len__(self) -> int:
        return 60


def test_an_error_of_a_batch_that_nobody_reads_begins_the_epoch_again(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    one = sampler(LENGTHS, rank=0, cap_tokens=200)
    # The one worker is asked for all batches of the epoch at once.
    loader: DataLoader[Any] = DataLoader(
        _Failing(file, one.step(2).own[0].tolist()[0]),
        batch_sampler=one,
        collate_fn=list,
        num_workers=1,
        prefetch_factor=100,
    )
    with pytest.raises(OSError, match="lost"):
        list(one.group(loader))
    file.unlink()
    assert [(step.epoch, step.index) for step, _ in one.group(loader)] == [(0, 0), (0, 1), (0, 2), (0, 3)]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_after_a_break_is_that_of_the_batches_that_were_read(workers: int) -> None:
    one = sampler(LENGTHS, rank=0, cap_tokens=200)
    loader: DataLoader[Any] = DataLoader(range(60), batch_sampler=one, collate_fn=list, num_workers=workers)  # type: ignore[arg-type]
    for step, batches in one.group(loader):
        next(batches)
        if step.index == 2:
            break
    state = one.state_dict()
    assert (state["epoch"], state["step"], state["batch"]) == (0, 2, 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loaded_state_of_which_nothing_was_read_stays_loaded(workers: int) -> None:
    one = sampler(LENGTHS, rank=0, cap_tokens=200)
    one.load_state_dict(one.state_at(2, epoch=1))
    loader: DataLoader[Any] = DataLoader(range(60), batch_sampler=one, collate_fn=list, num_workers=workers)  # type: ignore[arg-type]
    for _ in one.group(loader):
        break
    assert [(step.epoch, step.index) for step, _ in one.group(loader)] == [(1, 2), (1, 3)]


def test_leaving_a_group_late_does_not_change_a_later_one() -> None:
    one = sampler(LENGTHS, rank=0, cap_tokens=200)
    loader: DataLoader[Any] = DataLoader(range(60), batch_sampler=one, collate_fn=list)  # type: ignore[arg-type]
    left: Any = one.group(loader)
    next(next(left)[1])
    places = []
    for step, _ in one.group(loader, epochs=2):
        places.append((step.epoch, step.index))
        if places[-1] == (1, 0):
            left.close()
    assert places == [(epoch, index) for epoch in range(2) for index in range(4)]
    assert one.epoch == 2


def test_epochs_of_a_loader_without_the_sampler_are_refused() -> None:
    one = sampler(LENGTHS, rank=0, cap_tokens=200)
    with refused("argument_invalid", "does not iterate over this sampler"):
        list(one.group(range(len(one)), epochs=2))


def test_unread_batches_of_a_step_are_left_out() -> None:
    one = sampler(LENGTHS, rank=0, cap_tokens=100)
    loader: DataLoader[Any] = DataLoader(range(60), batch_sampler=one, collate_fn=list)  # type: ignore[arg-type]
    for step, batches in one.group(loader):
        assert len(step.own) > 1
        assert next(batches) == step.own[0].tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_after_a_step_is_that_of_the_step_however_far_the_loader_is(workers: int) -> None:
    one = sampler(LENGTHS, rank=0, cap_tokens=200)
    loader: DataLoader[Any] = DataLoader(range(60), batch_sampler=one, collate_fn=list, num_workers=workers)  # type: ignore[arg-type]
    places = []
    for step, batches in one.group(loader):
        list(batches)
        state = one.state_at(step.index + 1, epoch=step.epoch)
        places.append((state["epoch"], state["step"]))
    assert places == [*((0, index) for index in range(1, one.num_steps)), (1, 0)]


def test_a_loader_of_other_data_or_batches_is_refused() -> None:
    one = sampler(LENGTHS, rank=0, cap_tokens=200)
    with refused("lengths_invalid", "61 sequences", "lengths 60"):
        list(one.group(DataLoader(range(61), batch_sampler=one)))  # type: ignore[arg-type]
    count = len(one)
    with refused("argument_invalid", "the loader gave"):
        list(one.group(range(count - 1)))
    with refused("argument_invalid", "fewer batches than the loader"):
        list(one.group(range(count + 1)))
