"""The core tests what is decided; here stands what Python adds: arrays in and out, names and errors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraulis import Balance, InfeasibleError, InvalidInputError, balance

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
@settings(deadline=None)
@given(lengths=st.lists(st.integers(1, 1000), min_size=1, max_size=80), replicas=st.integers(1, 9))
def test_arrays_and_lists_say_the_same(barrier: str, lengths: list[int], replicas: int) -> None:
    result = balanced(lengths, barrier, replicas=replicas)
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
    result = balanced([5, 6, 7])
    assert result.sequences.dtype == result.replica_offsets.dtype == np.int64
    with pytest.raises(ValueError, match="read-only"):
        result.micro_batch_ms[0] = 0.0


def test_more_replicas_than_sequences() -> None:
    assert [len(own) for own in balanced([5, 6], "step").micro_batches] == [1, 1, 0, 0]
    assert [[len(ids) for ids in own] for own in balanced([5, 6]).micro_batches] == [[1], [1], [0], [0]]


@pytest.mark.parametrize(
    ("changed", "code", "message"),
    [
        ({"replicas": 0}, "argument_invalid", "replicas is 0: "),
        ({"cap_tokens": -7}, "argument_invalid", "cap_tokens is -7: "),
        ({"linear_ms_per_token": -1.0}, "argument_invalid", "linear_ms_per_token is -1"),
        ({"quadratic_ms_per_token2": float("nan")}, "argument_invalid", "quadratic_ms_per_token2 is NaN"),
        ({"barrier": "epoch"}, "argument_invalid", "barrier is 'epoch': give 'step'"),
        ({"lengths": []}, "batch_empty", "empty"),
        ({"lengths": [3.0]}, "lengths_invalid", "lengths"),
        ({"lengths": [4, 0]}, "lengths_invalid", "sequence 1 has length 0"),
    ],
)
def test_bad_input_is_named(changed: dict[str, object], code: str, message: str) -> None:
    lengths = changed.pop("lengths", [3, 4])
    with pytest.raises(InvalidInputError, match=message) as refusal:
        balanced(lengths, **{"barrier": "step"} | changed)  # type: ignore[arg-type]
    assert refusal.value.code == code


def test_a_sequence_above_the_cap_is_named() -> None:
    says = "sequence 1 has 1,001 tokens, .* cap_tokens = 1,000: .* raise cap_tokens"
    with pytest.raises(InfeasibleError, match=says) as refusal:
        balanced([3, 1001])
    assert refusal.value.code == "sequence_too_long"
