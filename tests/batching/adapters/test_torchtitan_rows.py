from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from batching.collators.attention import made_samples
from batching.drawn import COST, long_tail
from helpers import refused
from hydraulis.batching.adapters.torchtitan_rows import BalancedRows

LENGTHS = long_tail(60, longest=100)
SAMPLES = made_samples(LENGTHS.tolist())


def rows(rank: int = 0, ranks: int = 2) -> BalancedRows:
    return BalancedRows(
        SAMPLES, LENGTHS, seq_len=128, dp_rank=rank, dp_world_size=ranks, rows_per_step=3, cost=COST
    )


def same(one: Any, other: Any) -> bool:
    (first, label), (second, target) = one, other
    return all(torch.equal(first[name], second[name]) for name in first) and torch.equal(label, target)


def test_rows_have_one_size_and_labels_of_the_same_sequence() -> None:
    whole = rows()
    seen = []
    for batch, (inputs, label) in zip(list(rows().sampler), whole, strict=False):
        assert inputs["input"].shape == inputs["positions"].shape == label.shape == (128,)
        place = 0
        for index in batch:
            tokens = SAMPLES[index]["input_ids"]
            stop = place + len(tokens)
            assert inputs["input"][place:stop].tolist() == tokens
            assert inputs["positions"][place:stop].tolist() == list(range(len(tokens)))
            assert label[place:stop].tolist() == [*tokens[1:], -100]
            place = stop
        assert (label[place:] == -100).all()
        seen += batch
    assert len(seen) == len(set(seen))


def test_ranks_share_an_epoch_and_begin_the_next_one() -> None:
    own = [rows(rank) for rank in range(2)]
    counts = [len(one.sampler) for one in own]
    assert counts[0] == counts[1]
    for one in own:
        list(islice(one, counts[0] + 1))
        assert one.sampler.epoch == 1


@pytest.mark.parametrize("done", [0, 4, 40])
def test_a_loaded_state_continues_after_the_last_row(done: int) -> None:
    stream = rows()
    rest = iter(stream)
    list(islice(rest, done))
    state = stream.state_dict()
    expected = list(islice(rest, 5))
    resumed = rows()
    resumed.load_state_dict(state)
    assert all(same(one, other) for one, other in zip(islice(resumed, 5), expected, strict=True))


@pytest.mark.parametrize("workers", [1, 2])
def test_one_process_alone_reads_the_rows(workers: int) -> None:
    stream = iter(DataLoader(rows(), batch_size=None, num_workers=workers))
    if workers == 1:
        assert all(same(one, other) for one, other in zip(islice(stream, 5), rows(), strict=False))
        return
    # torch raises the error of a worker as a RuntimeError.
    with pytest.raises(RuntimeError, match="num_workers is 2"):
        next(stream)


ONE_RANK: dict[str, Any] = {
    "dp_rank": 0,
    "dp_world_size": 1,
    "rows_per_step": 3,
    "cost": COST,
    "seq_len": 128,
}


def test_rows_keep_their_size_and_the_sampler_s_padding() -> None:
    lengths = [*LENGTHS.tolist(), 300]
    stream = BalancedRows(made_samples(lengths), lengths, too_long="truncate", pad_sequence_to=8, **ONE_RANK)
    for inputs, _ in islice(stream, len(stream.sampler)):
        assert len(inputs["input"]) == 128
        assert all(start % 8 == 0 for start in torch.nonzero(inputs["positions"] == 0).flatten().tolist())


def test_samples_are_compared_with_their_lengths() -> None:
    with refused("lengths_invalid", "60 sequences", "lengths 50"):
        BalancedRows(SAMPLES, LENGTHS[:50], **ONE_RANK)
    with refused("micro_batch_invalid", "cap_tokens is 128"):
        list(islice(BalancedRows(SAMPLES, LENGTHS // 2 + 1, **ONE_RANK), 40))
