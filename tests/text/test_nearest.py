"""Which name was meant."""

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
def test_the_nearest_name_is_found_whatever_its_case(word: str, name: str | None) -> None:
    assert nearest_name(word, NAMES) == name
    assert did_you_mean(word, NAMES) == ("" if name is None else f"; did you mean '{name}'?")


def test_any_name_is_near_enough_where_one_has_to_be() -> None:
    assert nearest_name("zzz", NAMES, least=0.0) in NAMES
