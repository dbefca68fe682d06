"""accelerate's own classes around the sampler; the cases follow its tests of `BatchSamplerShard`."""

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.data_loader import (
    BatchSamplerShard,
    SkipBatchSampler,
    prepare_data_loader,
    skip_first_batches,
)
from torch.utils.data import DataLoader

from batching.drawn import long_tail, ranks_of, sampler
from helpers import refused
from peers.launch import findings

LENGTHS = long_tail(100)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("even", [True, False])
def test_a_shard_gives_each_process_its_batches(ranks: int, *, even: bool) -> None:
    whole = sampler(LENGTHS, ranks=ranks)
    expected = [list(one) for one in ranks_of(LENGTHS, ranks=ranks)]
    for process, batches in enumerate(expected):
        shard = BatchSamplerShard(sampler(LENGTHS, ranks=ranks), ranks, process, even_batches=even)
        assert len(shard) == len(batches)
        assert list(shard) == batches
    assert sorted(i for one in expected for batch in one for i in batch) == list(range(100))
    assert len(whole) == ranks * len(expected[0])


def test_a_sampler_of_one_rank_needs_no_shard() -> None:
    """Sharded again it would lose batches: the global order is for accelerate."""
    one = sampler(LENGTHS, rank=0)
    shard = BatchSamplerShard(one, 2, 0, even_batches=False)
    assert len(list(shard)) < len(list(sampler(LENGTHS, rank=0)))


def loader(process: int) -> Any:
    rows: Any = torch.arange(100)
    plain: DataLoader[int] = DataLoader(rows, batch_sampler=sampler(LENGTHS), collate_fn=torch.stack)
    return prepare_data_loader(
        plain,
        torch.device("cpu"),
        num_processes=2,
        process_index=process,
        even_batches=False,
        put_on_device=False,
    )


@pytest.mark.parametrize("process", [0, 1])
def test_a_prepared_loader_passes_the_epoch_on(process: int) -> None:
    prepared = loader(process)
    for epoch in (3, 0):
        prepared.set_epoch(epoch)
        found = [batch.tolist() for batch in prepared]
        expected = sampler(LENGTHS, rank=process)
        expected.set_epoch(epoch)
        assert found == list(expected)


@pytest.mark.parametrize("skipped", [0, 2])
def test_steps_of_a_prepared_loader_are_refused(skipped: int) -> None:
    """Its batches are those of one process, and `step.own` has those of all ranks."""
    prepared = loader(1)
    one = prepared.batch_sampler.batch_sampler
    with refused("argument_invalid", "each of 2 processes", "rank"):
        next(one.group(skip_first_batches(prepared, skipped) if skipped else prepared))


def test_the_first_batches_are_skipped() -> None:
    expected = list(sampler(LENGTHS, rank=1))
    assert [batch.tolist() for batch in skip_first_batches(loader(1), 3)] == expected[3:]
    assert list(SkipBatchSampler(sampler(LENGTHS, rank=1), skip_batches=2)) == expected[2:]


def test_two_processes_read_every_epoch_once_and_continue(tmp_path: Path) -> None:
    def expected(rank: int, epoch: int) -> list[list[int]]:
        one = sampler(LENGTHS, rank=rank)
        one.set_epoch(epoch)
        return list(one)

    for rank, found in enumerate(findings("accelerate_ranks.py", tmp_path)):
        first = expected(rank, 0)
        assert found["epochs"] == [first, expected(rank, 1)]
        for way in ("workers", "pickled", "joined", "even", "stateful"):
            assert found[way] == first, way
        assert found["after_loader_state"] == first[3:]
        steps = sampler(LENGTHS, rank=rank)
        done = sum(len(steps.step(index, epoch=3).own) for index in range(2))
        assert found["after_state_at"] == [expected(rank, 3)[done:]] * 4
