"""Options and states of wrong types: refused by name, or converted to plain numbers."""

import json
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batching.drawn import long_tail, sampler
from helpers import refused


@pytest.mark.parametrize(
    "changed",
    [
        {"cap_tokens": "1000"},
        {"cap_tokens": 1000.0},
        {"ranks": 2.5},
        {"ranks": True},
        {"rank": "0"},
        {"rank": 0.0},
        {"sequences_per_step": 8.0},
        {"tokens_per_step": "2000"},
        {"micro_batches": 2.0},
        {"seed": None},
        {"seed": 1.5},
        {"pad_to": None},
        {"shuffle": "no"},
        {"drop_last": 1},
        {"allow_empty": None},
        {"equal_sequences": "yes"},
        {"speeds": "ab"},
        {"speeds": 2},
        {"cost": "fast"},
        {"cost": None},
        {"cost": (1, 2, 3)},
        {"cost": ("1", "2")},
    ],
)
def test_a_wrong_type_is_refused_by_name(changed: dict[str, Any]) -> None:
    (name,) = changed
    with refused("argument_invalid", f"{name} is"):
        sampler(long_tail(60), **changed)


@pytest.mark.parametrize("ranks", [0, -1])
def test_no_ranks_are_refused_before_a_rank_is(ranks: int) -> None:
    with refused("argument_invalid", f"ranks is {ranks}"):
        sampler(long_tail(60), ranks=ranks, rank=0)


@pytest.mark.parametrize("too_long", ["refuse", "drop", "truncate"])
@given(st.integers(1, 40), st.integers(1, 20), st.integers(1, 20))
def test_a_cap_below_the_padding_is_refused(too_long: str, cap: int, pad_to: int, multiple: int) -> None:
    options = {"cap_tokens": cap, "pad_to": pad_to, "pad_sequence_to": multiple, "too_long": too_long}
    # The least cap with room for a padded sequence in a padded micro-batch.
    least = next(one for one in range(1, 100) if one // pad_to * pad_to >= multiple)
    if cap < least:
        with refused("argument_invalid", f"cap_tokens is {cap}", f"at least {least};"):
            sampler([1, 1, 1, 1], **options)
    else:
        one = sampler([1, 1, 1, 1], **options)
        assert sorted(i for batch in one for i in batch) == [0, 1, 2, 3]


def test_numbers_of_numpy_are_plain_in_the_state() -> None:
    numbers = {"cap_tokens": 900, "ranks": 2, "rank": 1, "sequences_per_step": 8, "seed": 3, "pad_to": 2}
    plain = sampler(long_tail(60, longest=500), **numbers)
    one = sampler(
        long_tail(60, longest=500),
        **{name: np.int64(value) for name, value in numbers.items()},
        cost=(np.float32(24_576), np.int64(1)),
        shuffle=np.True_,
    )
    epoch: Any = np.int64(2)
    one.set_epoch(epoch)
    plain.set_epoch(2)
    assert json.loads(json.dumps(one.state_dict())) == plain.state_dict()
    assert list(one) == list(plain)


@pytest.mark.parametrize("epoch", [1.5, "1", None])
def test_an_epoch_is_a_whole_number(epoch: Any) -> None:
    with refused("argument_invalid", f"epoch is {epoch!r}"):
        sampler(long_tail(60)).set_epoch(epoch)


@pytest.mark.parametrize("state", [None, "1", {"step": "1"}, {"batch": 0.5}, {"epoch": None}])
def test_a_state_of_wrong_types_is_refused(state: Any) -> None:
    one = sampler(long_tail(60), rank=0)
    with refused("checkpoint_mismatch"):
        one.load_state_dict(one.state_at(1, epoch=0) | state if isinstance(state, dict) else state)


def test_a_position_behind_the_epoch_or_the_step_is_refused() -> None:
    one = sampler(long_tail(60), rank=0)
    count = one.num_steps
    own = len(one.step(1).own)
    with refused("checkpoint_mismatch", f"step {count + 1}", f"{count} steps"):
        one.load_state_dict(one.state_dict() | {"step": count + 1})
    with refused("checkpoint_mismatch", f"batch {own}", f"{own} batches"):
        one.load_state_dict(one.state_dict() | {"step": 1, "batch": own})
    with refused("checkpoint_mismatch", f"step {count}", f"{count} steps"):
        one.load_state_dict(one.state_dict() | {"step": count, "batch": 1})
    one.load_state_dict(one.state_dict() | {"step": count})
    assert list(one) == []
    one.load_state_dict(one.state_at(1, batch=own - 1, epoch=0))
    assert len(next(iter(one))) > 0


def test_a_position_is_checked_when_it_is_saved() -> None:
    one = sampler(long_tail(60), rank=0)
    count, own = one.num_steps, len(one.step(1).own)
    state = one.state_at(cast("int", np.int64(2)), epoch=cast("int", np.int64(3)))
    assert (type(state["step"]), type(state["epoch"])) == (int, int)
    one.load_state_dict(state)
    for step, batch in ((-1, 0), (count + 1, 0), (count, 1), (1, own)):
        with refused("argument_invalid"):
            one.state_at(step, epoch=0, batch=batch)
    at_end = one.state_at(count, epoch=2)
    assert [at_end[name] for name in ("epoch", "step", "batch")] == [3, 0, 0]
    assert one.step(0, epoch=cast("int", np.int64(3))).targets == one.step(0, epoch=3).targets
    for steps in (0, -1):
        with refused("argument_invalid", f"steps is {steps}"):
            one.report(steps)


def test_targets_are_a_part_of_each_sequence() -> None:
    for targets, part in (([1, -1, 2], "-1 targets"), ([1, 1, 8], "8 targets and 7 tokens")):
        with refused("lengths_invalid", part):
            sampler([5, 6, 7], targets=targets)


def test_targets_of_a_truncated_sequence_are_those_of_its_first_tokens() -> None:
    options: dict[str, Any] = {"cap_tokens": 64, "too_long": "truncate", "sequences_per_step": 3}
    with refused("lengths_invalid", "sequence 1", "64 targets and 100 tokens", "leaves 64", "at most 63"):
        sampler([50, 100, 10], targets=[49, 64, 9], **options)
    assert sampler([50, 100, 10], targets=[49, 63, 9], **options).step(0).targets == 121
    # A sequence as long as the cap is whole.
    assert sampler([64, 9, 9], targets=[64, 9, 9], **options).step(0).targets == 82


def test_steps_per_epoch_belong_to_micro_batches_alone() -> None:
    with refused("argument_invalid", "steps_per_epoch is 3", "leave it out"):
        sampler([5, 6, 7], sequences_per_step=3, steps_per_epoch=3)


@pytest.mark.parametrize("name", ["groups", "targets", "prefix_tokens"])
def test_columns_are_named(name: str) -> None:
    values = {"groups": np.arange(60), name: np.full(60, 0.5)}
    with refused("lengths_invalid", f"{name} have shape"):
        sampler(long_tail(60), **values)


def test_two_sizes_of_a_step_are_refused_as_two() -> None:
    with refused("argument_invalid", "sequences_per_step and tokens_per_step both", "leave one out"):
        sampler([9] * 9, sequences_per_step=8, tokens_per_step=80)
