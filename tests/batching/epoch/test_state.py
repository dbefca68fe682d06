import json
from typing import Any

import numpy as np
import pytest

from batching.drawn import long_tail, sampler
from helpers import refused
from hydraulis.batching import SequenceCost


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"seed": 1}, "seed = 1"),
        ({"sequences_per_step": 9}, "sequences_per_step = 9"),
        ({"shuffle": False}, "shuffle = False"),
        ({"drop_last": True}, "drop_last = True"),
        ({"tokens_per_step": 2000}, "sequences_per_step = None"),
    ],
)
def test_a_state_of_other_steps_is_refused(changed: dict[str, Any], part: str) -> None:
    state = sampler(long_tail(60), **changed).state_at(1, epoch=0)
    with refused("checkpoint_mismatch", part):
        sampler(long_tail(60)).load_state_dict(state)


def test_a_state_of_other_data_is_refused() -> None:
    state = sampler(long_tail(60)).state_at(1, epoch=0)
    with refused("checkpoint_mismatch", "checksum"):
        sampler(long_tail(60, seed=1)).load_state_dict(state)
    with refused("checkpoint_mismatch", "sequences = 60", 61):
        sampler(long_tail(61)).load_state_dict(state)


@pytest.mark.parametrize(
    "changed",
    [
        {"cap_tokens": 1200},
        {"cost": (1, 0)},
        {"ranks": 3},
        {"pad_to": 8},
        {"rank": None},
        {"multiple_of": 2},
        {"equal_sequences": True},
        {"speeds": [1, 0.5]},
        {"work": [1e6] * 60},
        {"extra_tokens": [1] * 60, "cap_extra_tokens": 60},
    ],
)
def test_other_micro_batches_continue_at_the_start_of_a_step_only(changed: dict[str, Any]) -> None:
    one = sampler(long_tail(60), rank=0)
    other = sampler(long_tail(60), **({"rank": 0} | changed))
    other.load_state_dict(one.state_at(1, epoch=0))
    assert other.state_dict()["step"] == 1
    with refused("checkpoint_mismatch", "step"):
        other.load_state_dict(one.state_at(1, batch=1, epoch=0))


def test_filled_steps_depend_on_their_capacity() -> None:
    state = sampler(long_tail(60), rank=0, ranks=2, micro_batches=4).state_at(1, epoch=0)
    sampler(long_tail(60), rank=0, ranks=4, micro_batches=2).load_state_dict(state)
    with refused("checkpoint_mismatch", "ranks x micro_batches = "):
        sampler(long_tail(60), rank=0, ranks=4, micro_batches=4).load_state_dict(state)


@pytest.mark.parametrize(
    ("filled", "changed", "part"),
    [
        ({"equal_sequences": True}, {"ranks": 4, "micro_batches": 2}, "ranks = 2"),
        ({"equal_sequences": True}, {"speeds": [1, 0.5]}, "speeds = None"),
        ({"equal_sequences": True}, {"cost": (1, 0)}, "cost = "),
        ({}, {"equal_sequences": True}, "equal_sequences = False"),
        ({"extra_tokens": [1] * 60, "cap_extra_tokens": 9}, {"cap_extra_tokens": 12}, "cap_extra_tokens = 9"),
    ],
)
def test_steps_that_plans_fill_depend_on_all_that_decides_a_plan(
    filled: dict[str, Any], changed: dict[str, Any], part: str
) -> None:
    options = {"rank": 0, "ranks": 2, "micro_batches": 4} | filled
    state = sampler(long_tail(60), **options).state_at(1, epoch=0)
    sampler(long_tail(60), **options).load_state_dict(state)
    with refused("checkpoint_mismatch", part, "or start a new epoch"):
        sampler(long_tail(60), **(options | changed)).load_state_dict(state)


def test_sequences_dropped_by_padding_count() -> None:
    """Of 400 sequences padding drops some that fit without it: the epoch has others."""
    lengths = np.random.default_rng(0).integers(900, 1100, 400)
    one, other = (
        sampler(lengths, cap_tokens=1000, sequences_per_step=20, too_long="drop", pad_sequence_to=multiple)
        for multiple in (1, 16)
    )
    assert one.num_dropped < other.num_dropped
    with refused("checkpoint_mismatch", "dropped_above = 1000", "dropped_above = 992"):
        other.load_state_dict(one.state_at(5, epoch=0))


def test_a_state_of_another_kind_is_refused() -> None:
    one = sampler(long_tail(60), rank=0)
    with refused("checkpoint_mismatch", "'batch'"):
        one.load_state_dict({"epoch": 1, "step": 0})
    for name, value in (("step", -1), ("epoch", True), ("batch", 0.0)):
        with refused("checkpoint_mismatch", f"the state's {name} is {value}"):
            one.load_state_dict(one.state_at(0, epoch=0) | {name: value})
    one.load_state_dict(one.state_at(0, epoch=0) | {"step": np.int64(2)})
    assert one.next_position == (2, 0)


def test_a_state_of_other_groups_is_refused() -> None:
    """Groups of the same tokens, with other members."""
    pairs = sampler([20] * 60, groups=[index // 2 for index in range(60)])
    halves = sampler([20] * 60, groups=[index % 30 for index in range(60)])
    with refused("checkpoint_mismatch", "checksum"):
        halves.load_state_dict(pairs.state_at(1, epoch=0))


def test_a_state_has_plain_numbers() -> None:
    terms: Any = (np.float64(24_576), np.float32(1))
    cost = SequenceCost(*terms)
    state = sampler(long_tail(60), cost=cost).state_dict()
    assert [type(value) for value in state["cost"]] == [float] * 3
    assert json.loads(json.dumps(state)) == state
