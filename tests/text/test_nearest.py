"""The known name that is closest to an unknown one."""

import pytest

from hydraulis.text.nearest import did_you_mean, nearest_name

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
