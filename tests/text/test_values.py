"""Values and messages are short, whatever they repeat, and can be written anywhere."""

import pickle
from typing import Any

import pytest

from hydraulis.errors import InvalidInputError
from hydraulis.text.values import as_short_json, as_toml, did_you_mean, nearest_name

DEEP: Any = []
for _ in range(50_000):
    DEEP = [DEEP]


def test_a_long_or_deep_value_is_cut() -> None:
    for value in ("x" * 10_000, [1] * 10_000, {"a": DEEP}, 10**5_000, {"a" * 10_000: 1}):
        assert 0 < len(as_toml(value)) < 510
        assert 0 < len(as_short_json(value)) < 70


def test_a_message_that_repeats_a_long_input_keeps_its_start_and_its_remedy() -> None:
    message = f"field x = {'y' * 100_000} is long; cut it"
    error = InvalidInputError(message, code="config_value")
    assert str(error).startswith("field x = yyy")
    assert str(error).endswith("yyy is long; cut it")
    assert f"[... {len(message) - 8_000:,} characters ...]" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.code) == (str(error), error.code)


def test_half_of_a_surrogate_pair_does_not_stop_a_message() -> None:
    error = InvalidInputError("file 'a\udcff\ud800' is odd", code="file_unreadable")
    assert str(error) == "file 'a\\udcff\\ud800' is odd"
    assert str(error).encode()


NAMES = ["laptop", "node", "nodes", "ChatML"]


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("lapto", "laptop"),
        ("Node", "node"),
        ("NODESS", "nodes"),
        ("chatlm", "ChatML"),
        ("gpu", None),
    ],
)
def test_the_nearest_name_ignores_case(word: str, name: str | None) -> None:
    assert nearest_name(word, NAMES) == name
    assert did_you_mean(word, NAMES) == ("" if name is None else f"; did you mean '{name}'?")


def test_a_cutoff_of_zero_always_finds_a_name() -> None:
    assert nearest_name("zzz", NAMES, cutoff=0.0) in NAMES
