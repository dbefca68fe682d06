"""The contract of axolotl's tests of `MultipackBatchSampler`, on our subclass."""

import numpy as np
import pytest
from axolotl.utils.samplers.multipack import MultipackBatchSampler
from torch.utils.data import RandomSampler, SequentialSampler

from batching.drawn import COST, long_tail
from hydraulis.batching.adapters.axolotl_multipack import BalancedMultipackBatchSampler

LENGTHS = long_tail(500)


def make(batch_size: int, *, drop_last: bool = False) -> BalancedMultipackBatchSampler:
    order = RandomSampler(range(500))
    return BalancedMultipackBatchSampler(
        order, batch_size=batch_size, batch_max_len=1000, lengths=LENGTHS, bin_size=200, drop_last=drop_last
    )


@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_every_sequence_is_in_one_bin_under_the_cap(batch_size: int) -> None:
    sampler = make(batch_size)
    batches = list(sampler)
    assert isinstance(sampler, MultipackBatchSampler)
    assert sorted(i for batch in batches for one in batch for i in one) == list(range(500))
    assert all(len(batch) == batch_size for batch in batches[:-1])
    assert max(LENGTHS[one].sum() for batch in batches for one in batch) <= 1000
    assert sampler.efficiency() > 0.93


def test_batches_of_the_ranks_take_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def imbalance(kind: type[MultipackBatchSampler]) -> float:
        sampler = kind(SequentialSampler(range(500)), 1, 1000, LENGTHS, bin_size=200)
        times = [float(COST.times(LENGTHS[batch[0]]).sum()) for batch in sampler]
        times = times[: len(times) // 4 * 4]
        return float(np.reshape(times, (-1, 4)).max(axis=1).sum() * 4 / sum(times))

    monkeypatch.setenv("WORLD_SIZE", "4")
    assert imbalance(BalancedMultipackBatchSampler) < 1.02


def test_a_last_batch_is_dropped() -> None:
    assert {len(batch) for batch in make(4, drop_last=True)} == {4}


def test_an_epoch_packs_again() -> None:
    sampler = make(2)
    first = sampler.generate_batches()
    assert sampler.generate_batches() == first
    sampler.set_epoch(1)
    assert sampler.generate_batches() != first
