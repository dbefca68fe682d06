"""The contract of axolotl's tests of `MultipackBatchSampler`, on our subclass."""

import sys
from types import ModuleType

import numpy as np
import pytest
from axolotl.utils import samplers
from axolotl.utils.samplers import multipack
from axolotl.utils.samplers.multipack import MultipackBatchSampler
from torch.utils.data import RandomSampler, SequentialSampler

from batching.drawn import COST, long_tail
from helpers import refused
from hydraulis.batching import SequenceCost
from hydraulis.batching.adapters import axolotl_multipack
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


@pytest.mark.parametrize(("bin_size", "most"), [(3, 3), (200, 17), (None, 17)])
def test_a_bin_has_at_most_the_samples_of_the_bin_size(bin_size: int | None, most: int) -> None:
    lengths = np.full(100, 50)
    sampler = BalancedMultipackBatchSampler(
        SequentialSampler(range(100)), 1, 1000, lengths, bin_size=bin_size
    )
    batches = list(sampler)
    assert sorted(i for batch in batches for one in batch for i in one) == list(range(100))
    assert max(len(one) for batch in batches for one in batch) == most


def test_bins_that_keep_the_order_of_the_data_are_refused() -> None:
    with refused("argument_invalid", "sample_packing_sequentially"):
        BalancedMultipackBatchSampler(
            SequentialSampler(range(500)), 1, 1000, LENGTHS, bin_size=200, sequential=True
        )


def test_modules_that_count_steps_have_the_same_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    own = samplers.MultipackBatchSampler
    counting = ModuleType("axolotl.counting")
    counting.MultipackBatchSampler = own  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, counting.__name__, counting)
    monkeypatch.setattr(samplers, "MultipackBatchSampler", own)
    monkeypatch.setattr(multipack, "MultipackBatchSampler", own)
    monkeypatch.setattr(BalancedMultipackBatchSampler, "cost", COST)
    assert {counting.__name__, samplers.__name__} <= set(axolotl_multipack.install((1000, 1)))
    assert counting.MultipackBatchSampler is samplers.MultipackBatchSampler is BalancedMultipackBatchSampler
    assert BalancedMultipackBatchSampler.cost == SequenceCost(1000, 1)
    assert axolotl_multipack.install((1000, 1))


def test_a_last_batch_is_dropped() -> None:
    assert {len(batch) for batch in make(4, drop_last=True)} == {4}


def test_an_epoch_packs_again() -> None:
    sampler = make(2)
    first = sampler.generate_batches()
    assert sampler.generate_batches() == first
    sampler.set_epoch(1)
    assert sampler.generate_batches() != first
