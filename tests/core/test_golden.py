"""The native module gives the plans that the core's own test stores.

`cargo test` compares them in a build for tests; this module is the build that ships.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from helpers import ROOT
from hydraulis import Cluster, CostProfile, Planner

GOLDEN = ROOT / "crates/hydraulis-core/tests/it/golden"


def stored(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


def lengths() -> list[int]:
    def states() -> Iterator[int]:
        state = 12_345
        while True:
            state = (state * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % (1 << 64)
            yield state >> 33

    drawn = states()
    found = []
    for _ in range(400):
        first = next(drawn)
        found.append(1 + first % (16 << (next(drawn) % 12)))
    return found


def searching(profile: str, gpus: int) -> Planner:
    return Planner(CostProfile.preset(profile), Cluster(gpus, 8), strategies="search")


# <tp4> admits 7,808 tokens, <tp8> 21,888.
AT_CAPS = [(7_808, 21_888, 3_904, 7_809)[index % 4] for index in range(90)]
LISTED = Planner(CostProfile.preset("llama-32b-a800"), Cluster(64, 8))
SEARCHING = searching("llama-32b-a800", 64)


@pytest.mark.parametrize(
    ("name", "planner", "batch"),
    [
        ("32b-64-gpus-list", LISTED, lengths()),
        ("32b-64-gpus-search", SEARCHING, lengths()),
        ("7b-16-gpus-search", searching("llama-7b-a800", 16), lengths()),
        ("32b-64-gpus-caps", SEARCHING, AT_CAPS),
    ],
)
def test_fixed_batches_give_the_stored_plans(name: str, planner: Planner, batch: list[int]) -> None:
    assert json.loads(planner.plan(batch).to_json()) == stored(name)


def test_a_lookahead_gives_the_stored_plans() -> None:
    drawn = lengths()
    batches = [[*drawn[start : start + 134], 32_768] for start in range(0, 400, 134)]
    found = SEARCHING.plan_lookahead(batches, max_delay=2, switch_ms=20.0)
    steps = stored("lookahead")
    assert [json.loads(plan.to_json()) for plan in found.plans] == [step["plan"] for step in steps]
    assert [members.tolist() for members in found.members] == [step["members"] for step in steps]
    assert found.switch_ms == sum(step["switch_ms"] for step in steps)
