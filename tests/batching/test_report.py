import numpy as np
import pytest

from batching.drawn import COST, long_tail, sampler
from hydraulis.batching import SequenceCost


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pad_sequence_to": 32, "pad_to": 100},
        {"cost": SequenceCost(24_576, 1, fixed=1e5)},
        {"micro_batches": 3},
        {"barrier": "step", "rank": 1},
    ],
)
def test_ideal_and_losses_add_up(options: dict[str, object]) -> None:
    report = sampler(long_tail(120, longest=800), **options).report()
    lost = (
        report.lost_to_imbalance + report.lost_to_cap + report.lost_to_padding + report.lost_to_micro_batches
    )
    assert report.ideal + lost == pytest.approx(report.reached)
    assert min(report.lost_to_imbalance, report.lost_to_cap, report.lost_to_padding) >= 0
    assert (report.lost_to_padding > 0) == ("pad_to" in options)
    assert (report.lost_to_micro_batches > 0) == (getattr(options.get("cost"), "fixed", 0) > 0)
    assert report.sequences == 120
    assert report.tokens == long_tail(120, longest=800).sum()
    assert f"{report.tokens:,} tokens" in str(report)


def test_the_sequence_that_bounds_a_step_is_named() -> None:
    lengths = np.full(64, 50)
    lengths[37] = 1000
    one = sampler(lengths, ranks=8)
    report = one.report()
    (bounding,) = report.bounding
    assert 37 in np.concatenate([part for rank in one.step(bounding.step).micro_batches for part in rank])
    assert (bounding.sequence, bounding.tokens) == (37, 1000)
    times = COST.times([50] * 15 + [1000])
    assert bounding.factor == pytest.approx(times[-1] / (times.sum() / 8))
    assert f"{bounding.factor:.2f}x: sequence 37 has 1,000 tokens" in str(report)
    assert report.lost_to_imbalance > report.lost_to_cap


def test_a_low_cap_is_named_as_the_loss() -> None:
    """Three sequences of 600 tokens on two ranks: a cap of 1,000 forces four micro-batches."""
    lengths = [600, 600, 600, 600, 600, 600]
    tight = sampler(lengths, sequences_per_step=6, cap_tokens=1000).report()
    loose = sampler(lengths, sequences_per_step=6, cap_tokens=1800).report()
    assert tight.lost_to_imbalance == loose.lost_to_imbalance == loose.lost_to_cap == 0
    uneven = sampler([900, 500, 500, 100, 100, 100], sequences_per_step=6, cap_tokens=900).report()
    assert uneven.lost_to_cap > 0


def test_a_part_of_the_epoch_is_reported() -> None:
    one = sampler(long_tail(120))
    assert one.report(steps=2).steps == 2
    assert one.report().steps == one.num_steps
