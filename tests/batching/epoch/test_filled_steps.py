import time
from collections import Counter
from typing import Any

import pytest

from batching.drawn import long_tail, sampler
from helpers import refused
from hydraulis.batching.epoch import filled_steps
from hydraulis.batching.epoch.order import Indices
from hydraulis.batching.items.pool import SequencePool

LENGTHS = long_tail(120, longest=100)


@pytest.mark.parametrize("extra", [0, 1, 7])
@pytest.mark.parametrize("options", [{}, {"equal_sequences": True}])
def test_epochs_have_the_number_of_steps_and_every_sequence_once(
    extra: int, options: dict[str, bool]
) -> None:
    free = sampler(LENGTHS, rank=0, ranks=1, cap_tokens=200, micro_batches=2, **options)
    most = max(free.count_steps(epoch) for epoch in range(6)) + extra
    fixed = sampler(
        LENGTHS, rank=0, ranks=1, cap_tokens=200, micro_batches=2, steps_per_epoch=most, **options
    )
    for epoch in range(6):
        fixed.set_epoch(epoch)
        assert len(fixed) == 2 * fixed.num_steps == 2 * most
        batches = list(fixed)
        assert len(batches) == 2 * most
        assert all(batch and LENGTHS[batch].sum() <= 200 for batch in batches)
        assert Counter(i for batch in batches for i in batch) == Counter(range(120))


@pytest.mark.parametrize(
    ("steps", "part"), [(2, "raise it"), (61, "at most 60 steps of at least 2; lower it")]
)
def test_a_number_of_steps_that_no_epoch_has_is_refused(steps: int, part: str) -> None:
    with refused("batch_unplaceable", f"steps_per_epoch is {steps}", part):
        sampler(LENGTHS, rank=0, ranks=1, cap_tokens=200, micro_batches=2, steps_per_epoch=steps)


@pytest.mark.parametrize("cap", [2**26, 2**26 + 1, 2**32])
def test_every_cap_of_a_micro_batch_is_taken(cap: int) -> None:
    long = sampler([2**26, 1, 2**26, 3, 4, 5], cap_tokens=cap, ranks=1, micro_batches=2)
    assert long.num_steps == (1 if cap == 2**32 else 2)
    assert sampler([5, 6, 7, 8], cap_tokens=cap, ranks=1, rank=0, micro_batches=1).num_steps == 1


def test_an_epoch_of_short_steps_is_divided_in_a_time_by_its_sequences() -> None:
    """A packing of a few items took as long as an array over the tokens of a micro-batch."""

    def seconds(cap: int) -> float:
        lengths = long_tail(4000, longest=4000) * (cap // 4096)
        start = time.process_time()
        sampler(lengths, cap_tokens=cap, ranks=1, rank=0, micro_batches=4)
        return time.process_time() - start

    seconds(4096)
    assert seconds(2**22) < 5 * seconds(4096)


def test_a_state_of_other_steps_is_refused() -> None:
    one, other = (
        sampler(LENGTHS, rank=0, cap_tokens=400, micro_batches=2, steps_per_epoch=steps) for steps in (6, 7)
    )
    with refused("checkpoint_mismatch", "steps_per_epoch = 6"):
        other.load_state_dict(one.state_at(1, epoch=0))


@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"pad_sequence_to": 64, "pad_to": 128}])
def test_steps_do_not_depend_on_the_blocks_of_the_order(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """An item's tokens are added up once a block, and not in every step."""
    lengths, counted, plans = long_tail(3000, longest=800), [0], []
    occupied = SequencePool.occupied

    def count(pool: SequencePool, items: Indices) -> Indices:
        counted[0] += len(items)
        return occupied(pool, items)

    monkeypatch.setattr(SequencePool, "occupied", count)
    for block in (3000, 64, 7):
        monkeypatch.setattr(filled_steps, "_BLOCK", block)
        one = sampler(lengths, ranks=1, micro_batches=2, **options)
        counted[0] = 0
        steps = one._steps(1)
        plans.append([steps.bounds(index) for index in range(len(steps))])
        # The bisection counts those of a step too.
        assert counted[0] < 12 * len(lengths)
    assert plans[0] == plans[1] == plans[2]
