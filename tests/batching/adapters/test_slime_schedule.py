"""The invariants that slime states for `build_dp_schedule`, on our schedule."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from batching.drawn import COST
from helpers import refused
from hydraulis.batching.adapters.slime_schedule import make_dp_schedule


def arguments(**changed: Any) -> SimpleNamespace:
    options: dict[str, Any] = {
        "use_dynamic_batch_size": True,
        "max_tokens_per_gpu": 100,
        "balance_data": True,
    }
    return SimpleNamespace(**(options | changed))


def scheduled(
    lengths: list[int], rollouts: list[int] | None = None, *, per_step: int | None = None, **options: Any
) -> tuple[Any, ...]:
    parallel = {"dp_size": 2, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
    named = {name: options.pop(name) for name in list(options) if name in parallel}
    indices = list(range(len(lengths))) if rollouts is None else rollouts
    build = make_dp_schedule(COST)
    size = per_step or len(set(indices))
    return build(
        arguments(**options), parallel | named, lengths, global_batch_size=size, rollout_indices=indices
    )


def check(schedule: tuple[Any, ...], kept: set[int], lengths: list[int], cap: int) -> None:
    partitions, micro_batches, counts, _ = schedule
    assert sorted(sample for rank in partitions for sample in rank) == sorted(kept)
    for samples, own in zip(partitions, micro_batches, strict=True):
        assert len(own) == sum(counts)
        assert [place for part in own for place in part] == list(range(len(samples)))
        for part in own:
            tokens = [lengths[samples[place]] for place in part]
            assert tokens
            assert len(tokens) == 1 or sum(tokens) <= cap


@pytest.mark.parametrize("cp", [1, 2])
@pytest.mark.parametrize("group", [1, 2, 3])
def test_random_steps_keep_the_invariants(cp: int, group: int) -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        lengths = rng.integers(1, 120, rng.integers(60, 120)).tolist()
        vpp: dict[str, Any] = {
            "vpp_size": 2 if group > 1 else 1,
            "microbatch_group_size_per_vp_stage": group,
            "cp_size": cp,
        }
        schedule = scheduled(lengths, per_step=len(lengths) // 2, dp_size=3, **vpp)
        kept = set(range(len(lengths) // 2 * 2))
        check(schedule, kept, lengths, 100 * cp)
        assert all(count % group == 0 for count in schedule[2])
        assert schedule[3] == [len(lengths) // 2] * 2


def test_a_rollout_stays_in_one_step_and_the_rest_is_left_out() -> None:
    rollouts = [0, 0, 0, 1, 1, 2, 2, 2, 2, 3]
    schedule = scheduled([30] * 10, rollouts, per_step=2, dp_size=1)
    check(schedule, set(range(10)), [30] * 10, 100)
    first = schedule[1][0][: schedule[2][0]]
    assert {rollouts[schedule[0][0][place]] for part in first for place in part} == {0, 1}
    assert len(scheduled([30] * 10, rollouts, per_step=3, dp_size=1)[2]) == 1


def test_a_sample_above_the_cap_is_alone() -> None:
    lengths = [150, 30, 30, 30, 30, 30, 30, 30]
    schedule = scheduled(lengths)
    check(schedule, set(range(8)), lengths, 100)


def test_the_safety_margin_lowers_the_cap() -> None:
    schedule = scheduled([60, 60, 60, 60], dp_size=1, max_tokens_per_gpu=120, packing_safety_margin=0.5)
    assert schedule[2] == [4]


@pytest.mark.parametrize(
    "changed",
    [{"use_dynamic_batch_size": False}, {"global_batch_tokens": 5}, {"multimodal_aware_packing": "separate"}],
)
def test_schedules_of_slime_alone_are_refused(changed: dict[str, Any]) -> None:
    with refused("argument_invalid", next(iter(changed))):
        scheduled([5, 6], **changed)


def test_fewer_rollouts_than_a_step_has_are_refused() -> None:
    with refused("argument_invalid", "global_batch_size is 3", "2 rollouts"):
        scheduled([5, 6, 7], [0, 0, 1], per_step=3)
