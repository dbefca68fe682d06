import json
from types import SimpleNamespace

import pytest

from helpers import refused
from hydraulis import CostProfile, Scheme
from hydraulis.batching import SequenceCost

DENSE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 1000,
}


def test_a_profile_gives_its_coefficients() -> None:
    profile = CostProfile.preset("llama-7b-a800")
    cost = SequenceCost.of_profile(profile, "<tp2>")
    for lengths in ([1000], [300, 2000, 17]):
        expected = profile.micro_batch_ms(Scheme("<tp2>"), lengths)
        assert cost.times(lengths).sum() + cost.fixed == pytest.approx(expected)
    document = json.loads(profile.to_json())
    for entry in document["schemes"]:
        entry["least_ms"] = 2000.0
    assert SequenceCost.of_profile(CostProfile.from_json(json.dumps(document)), "<tp2>") == cost
    assert SequenceCost.of(profile) == SequenceCost.of_profile(profile, profile.schemes[0])


def test_a_model_gives_its_operations() -> None:
    cost = SequenceCost.of(DENSE)
    weights = 2 * (4 * 64 * 64 + 3 * 64 * 128) + 64 * 1000
    assert cost == SequenceCost(6 * weights, 6 * 2 * 64)
    assert SequenceCost.of(SimpleNamespace(**DENSE)) == cost
    experts = DENSE | {"num_experts_per_tok": 2, "moe_intermediate_size": 64}
    assert SequenceCost.of(experts) == cost


def test_two_numbers_are_a_cost() -> None:
    assert SequenceCost.of((3, 0.5)) == SequenceCost(3, 0.5)
    assert SequenceCost(3, 0.5).times([2]).tolist() == [8.0]


@pytest.mark.parametrize("cost", [(-1, 1), (0, 0), (float("nan"), 1), (1, float("inf"))])
def test_senseless_numbers_are_refused(cost: tuple[float, float]) -> None:
    with refused("argument_invalid", "cost."):
        SequenceCost.of(cost)


def test_a_model_without_a_field_is_refused() -> None:
    with refused("model_invalid", "num_hidden_layers"):
        SequenceCost.of({name: value for name, value in DENSE.items() if name != "num_hidden_layers"})


def test_terms_are_numbers() -> None:
    with refused("argument_invalid", "cost.linear is 'a'"):
        SequenceCost("a", 1)  # type: ignore[arg-type]
