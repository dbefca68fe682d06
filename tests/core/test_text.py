"""Text for the core: halves of surrogate pairs are refused with a code, all other characters are taken."""

from collections.abc import Callable

import pytest

from helpers import refused
from hydraulis import CostProfile, Plan, Strategy
from hydraulis._core import LinkRates, ModelShape, Parameter, Scheme

READERS: dict[str, Callable[[str], object]] = {
    "profile": CostProfile.from_json,
    "preset": CostProfile.preset,
    "plan": Plan.from_json,
    "shape": ModelShape.from_json,
    "scheme": Scheme,
    "checkpointing": lambda name: Scheme("<1>").with_checkpointing(name),
    "strategy": Strategy,
    "rates": LinkRates.parse,
    "parameter": lambda name: Parameter(name, rows=1, row_elements=1, units=1, layer_groups=[0]),
}


@pytest.mark.parametrize("reader", READERS)
def test_half_of_a_surrogate_pair_is_refused_by_its_place(reader: str) -> None:
    with refused("argument_invalid", "character 3"):
        READERS[reader]("abc\ud800")


def test_a_profile_may_be_named_in_any_script() -> None:
    profile = CostProfile.preset("llama-32b-a800").to_json()
    name = "Größe 大 \U0001f4be"
    assert CostProfile.from_json(profile.replace('"llama-32b-a800"', f'"{name}"', 1)).name == name
