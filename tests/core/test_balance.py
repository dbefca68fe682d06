"""Python's part of the balance: arrays in and out, names and errors. The core tests the decisions."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import refused
from hydraulis import Balance, BalanceOptions, InfeasibleError, InvalidInputError, balance

BARRIERS = ["step", "micro_batch"]


def balanced(lengths: object, barrier: str = "micro_batch", **changed: object) -> Balance:
    options: dict[str, object] = {
        "replicas": 4,
        "cap_tokens": 1000,
        "linear_ms_per_token": 24576.0,
        "quadratic_ms_per_token2": 1.0,
        "barrier": barrier,
    }
    return balance(lengths, **(options | changed))  # type: ignore[arg-type]


@pytest.mark.parametrize("barrier", BARRIERS)
@given(lengths=st.lists(st.integers(1, 1000), min_size=1, max_size=80), replicas=st.integers(1, 9))
def test_arrays_and_lists_give_the_same_balance(barrier: str, lengths: list[int], replicas: int) -> None:
    result = balanced(lengths, barrier, replicas=replicas, options=BalanceOptions(allow_empty=True))
    assert sorted(result.sequences.tolist()) == list(range(len(lengths)))
    rows = np.split(result.sequences, result.micro_batch_offsets[1:-1])
    slices = zip(result.replica_offsets, result.replica_offsets[1:], strict=False)
    parts = [[row.tolist() for row in rows[start:end]] for start, end in slices]
    assert parts == result.micro_batches
    assert len(parts) == replicas
    times = [sum(24576.0 * lengths[i] + lengths[i] ** 2 for i in row) for row in rows]
    assert result.micro_batch_ms.tolist() == pytest.approx(times)
    totals = [times[a:b] for a, b in zip(result.replica_offsets, result.replica_offsets[1:], strict=False)]
    if barrier == "step":
        expected = max(sum(total) for total in totals)
    else:
        expected = sum(max(slot) for slot in zip(*totals, strict=True))
    assert result.iteration_ms == pytest.approx(expected)
    assert result.gap == pytest.approx(result.iteration_ms / result.lower_bound_ms - 1)
    assert result.gap >= 0


@pytest.mark.parametrize("dtype", ["uint16", "int32", "uint32", "int64", "uint64"])
def test_any_integer_array_is_taken(dtype: str) -> None:
    lengths = [900, 30, 500, 20]
    assert balanced(np.array(lengths, dtype=dtype)) == balanced(lengths)


def test_results_are_read_only() -> None:
    result = balanced([5, 6, 7, 8])
    assert result.sequences.dtype == result.replica_offsets.dtype == np.int64
    with pytest.raises(ValueError, match="read-only"):
        result.micro_batch_ms[0] = 0.0


def test_more_replicas_than_sequences_need_empty_micro_batches() -> None:
    for barrier in BARRIERS:
        with refused("batch_unplaceable", "2 sequences", "4 replicas"):
            balanced([5, 6], barrier)
    allowed = BalanceOptions(allow_empty=True)
    assert [len(own) for own in balanced([5, 6], "step", options=allowed).micro_batches] == [1, 1, 0, 0]
    slots = balanced([5, 6], options=allowed).micro_batches
    assert [[len(ids) for ids in own] for own in slots] == [[1], [1], [0], [0]]


@pytest.mark.parametrize("barrier", BARRIERS)
def test_options_and_values_reach_the_core(barrier: str) -> None:
    options = BalanceOptions(
        micro_batches=2, equal_sequences=True, fixed_ms=3.0, speeds=[1.0, 0.5], cap_extra_tokens=10
    )
    found = balanced(
        np.arange(20, 36),
        barrier,
        replicas=2,
        linear_ms_per_token=0.0,
        quadratic_ms_per_token2=0.0,
        work_ms=np.arange(16) + 1.0,
        extra_tokens=[5, 0] * 8,
        groups=np.arange(16) // 2,
        targets=[3, 0] * 8,
        options=options,
    )
    assert [len(own) for own in found.micro_batches] == [2, 2]
    assert [sum(map(len, own)) for own in found.micro_batches] == [8, 8]
    rows = [ids for own in found.micro_batches for ids in own]
    assert all({sequence ^ 1 for sequence in row} == set(row) for row in rows)
    assert all(sum(sequence % 2 == 0 for sequence in row) == 2 for row in rows)
    speeds = [1.0, 1.0, 0.5, 0.5]
    times = [
        (3 + sum(sequence + 1 for sequence in row)) / speed for row, speed in zip(rows, speeds, strict=True)
    ]
    assert found.micro_batch_ms.tolist() == pytest.approx(times)
    # Each micro-batch has 6 of the 24 targets, and its replica's share of the mean is a half.
    assert found.loss_weights.tolist() == [0.5, 0.5, 0.5, 0.5]


def test_weighted_mean_losses_give_the_mean_over_all_targets() -> None:
    generator = np.random.default_rng(3)
    lengths = generator.integers(2, 400, 60)
    targets = generator.integers(0, lengths)
    losses = generator.random(60) * targets  # sum of the losses of each sequence's targets
    found = balanced(lengths, "step", targets=targets)
    rows = np.split(found.sequences, found.micro_batch_offsets[1:-1])
    means = [losses[row].sum() / max(1, targets[row].sum()) for row in rows]
    weighted = found.loss_weights * means
    assert weighted.sum() / 4 == pytest.approx(losses.sum() / targets.sum())


@pytest.mark.parametrize(
    ("changed", "code", "parts"),
    [
        ({"replicas": 0}, "argument_invalid", ("replicas is 0",)),
        ({"cap_tokens": -7}, "argument_invalid", ("cap_tokens is -7",)),
        ({"linear_ms_per_token": -1.0}, "argument_invalid", ("linear_ms_per_token is -1",)),
        ({"quadratic_ms_per_token2": float("nan")}, "argument_invalid", ("quadratic_ms_per_token2 is NaN",)),
        ({"barrier": "epoch"}, "argument_invalid", ("barrier is 'epoch'", "'step'")),
        ({"work_ms": [1.0, -2.0]}, "argument_invalid", ("work_ms", "sequence 1 ", -2)),
        ({"work_ms": [1.0]}, "lengths_invalid", ("work_ms", "1 values", "2 sequences")),
        ({"work_ms": "long"}, "argument_invalid", ("work_ms",)),
        ({"work_ms": np.array([1 + 2j, 3])}, "argument_invalid", ("work_ms", "complex128")),
        ({"work_ms": np.zeros(2, dtype=[("a", "f8")])}, "argument_invalid", ("work_ms", "dtype [('a'")),
        ({"groups": [0, 0.5]}, "lengths_invalid", ("groups: sequence ",)),
        ({"groups": [1, 1, 1]}, "lengths_invalid", ("groups", "3 values", "2 sequences")),
        ({"extra_tokens": [1, 1]}, "argument_invalid", ("extra_tokens", "cap_extra_tokens")),
        ({"options": {"cap_extra_tokens": 5}}, "argument_invalid", ("cap_extra_tokens", " extra_tokens")),
        ({"options": {"cap_extra_tokens": 0}}, "argument_invalid", ("cap_extra_tokens is 0",)),
        ({"options": {"micro_batches": 0}}, "argument_invalid", ("micro_batches is 0", "1,048,576")),
        ({"options": {"micro_batches": 3, "multiple_of": 2}}, "argument_invalid", ("multiple_of = 2",)),
        ({"options": {"fixed_ms": -1.0}}, "argument_invalid", ("fixed_ms is -1",)),
        ({"options": {"speeds": [1, 0, 1, 1]}}, "argument_invalid", ("replica 1 has 0",)),
        ({"options": {"speeds": np.ones(4, dtype="complex64")}}, "argument_invalid", ("speeds", "complex64")),
        ({"options": {"speeds": [1.0]}}, "argument_invalid", ("1 speeds", "4 replicas")),
        (
            {"lengths": [1, 1, 1], "groups": [7, 7, 8], "options": {"equal_sequences": True}},
            "argument_invalid",
            ("group 7 has 2", "group 8 has 1"),
        ),
        ({"lengths": []}, "batch_empty", ()),
        ({"lengths": [3.0]}, "lengths_invalid", ("lengths",)),
        ({"lengths": [4, 0]}, "lengths_invalid", ("sequence 1 ", "length 0")),
    ],
)
def test_bad_input_is_named(changed: dict[str, object], code: str, parts: tuple[object, ...]) -> None:
    changed = {"barrier": "step"} | changed
    lengths = changed.pop("lengths", [3, 4])
    options = changed.pop("options", {"allow_empty": True})
    with refused(code, *parts, kind=InvalidInputError):
        balanced(lengths, **changed, options=BalanceOptions(**options))  # type: ignore[arg-type]


def test_a_sequence_above_the_cap_is_named() -> None:
    parts = ("sequence 1 ", "1,001 tokens", "cap_tokens = 1,000")
    with refused("sequence_too_long", *parts, kind=InfeasibleError):
        balanced([3, 1001])


@pytest.mark.parametrize(
    ("changed", "code", "parts"),
    [
        ({"groups": [4, 4]}, "sequence_too_long", ("group 4 ", "2 sequences", "sequence 0 ", "1,100 tokens")),
        (
            {"extra_tokens": [3, 9], "options": BalanceOptions(cap_extra_tokens=8)},
            "sequence_too_long",
            ("sequence 1 ", "9 extra tokens", "cap_extra_tokens = 8"),
        ),
        (
            {"replicas": 1, "options": BalanceOptions(micro_batches=1)},
            "batch_unplaceable",
            ("2 sequences", "1,100 tokens", "1 micro-batches", "= 1,000"),
        ),
        (
            {"replicas": 1, "options": BalanceOptions(micro_batches=3)},
            "batch_unplaceable",
            ("2 sequences", "1 replicas", "3 micro-batches", "at least 3"),
        ),
    ],
)
def test_sequences_that_do_not_fit_are_named(
    changed: dict[str, object], code: str, parts: tuple[str, ...]
) -> None:
    for barrier in BARRIERS:
        with refused(code, *parts, kind=InfeasibleError):
            balanced([300, 800], barrier, **{"replicas": 2} | changed)


@pytest.mark.parametrize("barrier", BARRIERS)
@pytest.mark.parametrize(
    ("option", "gap"),
    [
        ({"micro_batches": 8}, 0.01),
        ({"multiple_of": 4}, 0.01),
        ({"equal_sequences": True}, 0.06),
        ({"fixed_ms": 4e7}, 0.02),
        ({"speeds": [1.0] * 15 + [0.8]}, 0.02),
    ],
    ids=lambda option: next(iter(option)) if isinstance(option, dict) else "",
)
def test_every_option_comes_near_its_bound(barrier: str, option: dict[str, Any], gap: float) -> None:
    lengths = np.random.default_rng(0).lognormal(np.log(1500), 1.2, 1024).round().clip(1, 32_768).astype(int)
    options = BalanceOptions(**option)
    found = balanced(lengths, barrier, replicas=16, cap_tokens=32_768, options=options)
    assert found.gap <= gap
