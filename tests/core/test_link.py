from collections.abc import Callable
from typing import Any

import pytest

from core.links import ELEMENTS, LAYERS, link, table
from helpers import refused
from hydraulis import Cluster, CostProfile, InvalidInputError, Link, Plan, Planner

PROFILE = CostProfile.preset("llama-32b-a800")
CLUSTER = Cluster(gpus=64, gpus_per_node=8)
LENGTHS = [7_000, 5_000, 3_000, 900, 900, 400] * 12


@pytest.fixture(scope="module")
def narrow() -> Plan:
    """A plan of <tp4> alone, with links of 200 GB/s."""
    return Planner(PROFILE, CLUSTER, strategies=["16x<tp4>"], link=link()).plan(LENGTHS)


def test_a_plan_states_its_transfers(narrow: Plan) -> None:
    assert narrow.transfer_ms is not None
    assert narrow.overlapped is not None
    assert narrow.step_ms == pytest.approx(narrow.iteration_ms + narrow.transfer_ms)
    # The whole model on each node: 7/8 of it leave and reach each, two bytes out and four back.
    assert narrow.moved_bytes == LAYERS * ELEMENTS * 6 * 8 * 7 // 8
    alone_ms = LAYERS * ELEMENTS * 6 * 7 / 8 / 200e6
    assert narrow.overlapped == pytest.approx(1 - narrow.transfer_ms / alone_ms)
    assert narrow.overlapped > 0.8
    assert Plan.from_json(narrow.to_json()) == narrow
    assert "transfers" in narrow.explain()


def test_without_a_link_a_step_is_an_iteration(narrow: Plan) -> None:
    planner = Planner(PROFILE, CLUSTER, strategies=["16x<tp4>"])
    plan = planner.plan(LENGTHS)
    assert (plan.transfer_ms, plan.overlapped, plan.moved_bytes) == (None, None, None)
    assert plan.step_ms == plan.iteration_ms == pytest.approx(narrow.iteration_ms)
    assert any("transfers_differ" in broken for broken in planner.check(narrow, LENGTHS))


def test_slow_links_favour_strategies_that_move_less() -> None:
    slow, fast = (Planner(PROFILE, CLUSTER, link=link(rate)) for rate in (0.5, 1e6))
    few, many = slow.plan(LENGTHS), fast.plan(LENGTHS)
    assert few.moved_bytes is not None
    assert many.moved_bytes is not None
    assert few.moved_bytes < many.moved_bytes
    assert few.iteration_ms > many.iteration_ms
    assert slow.check(few, LENGTHS) == fast.check(many, LENGTHS) == []


def test_a_node_with_slow_links_makes_transfers_longer() -> None:
    equal = Planner(PROFILE, CLUSTER, link=link(40))
    slow = Planner(PROFILE, CLUSTER, link=link(40).with_node_slowdowns([1.0] * 7 + [100.0]))
    one = Planner(PROFILE, CLUSTER, link=link(40).with_node_slowdowns([1.0] * 8))
    plan, slower = equal.plan(LENGTHS), slow.plan(LENGTHS)
    assert one.plan(LENGTHS) == plan
    assert slow.check(slower, LENGTHS) == []
    # The plan for equal links states too short transfers.
    assert slow.check(plan, LENGTHS) != []
    assert slower.step_ms > plan.step_ms


@pytest.mark.parametrize(
    ("call", "code", "part"),
    [
        (lambda: link(0), "argument_invalid", "gigabytes_per_s is 0"),
        (
            lambda: Link(table(), gigabytes_per_s=1, gpu_gigabytes_per_s=-1),
            "argument_invalid",
            "gpu_gigabytes_per_s is -1",
        ),
        (lambda: Link(table(), gigabytes_per_s=1, message_us=-1), "argument_invalid", "message_us is -1"),
        (
            lambda: Link(table(), gigabytes_per_s=1, parameter_bytes=9),
            "argument_invalid",
            "parameter_bytes of a link is 9",
        ),
        (
            lambda: link(1).with_node_slowdowns([1.0, 0.5]),
            "argument_invalid",
            "the links of node 1 have slowdown 0.5",
        ),
        (
            lambda: Planner(PROFILE, CLUSTER, link=link(1).with_node_slowdowns([1.0, 2.0])),
            "argument_invalid",
            "2 slowdowns of links for 8 nodes",
        ),
        (lambda: table(1 << 20), "model_invalid", "1,048,576 layers"),
        (
            lambda: Planner(PROFILE, CLUSTER, link=Link(table(1), gigabytes_per_s=1)),
            "scheme_model_mismatch",
            "1 layers",
        ),
    ],
)
def test_an_invalid_link_is_refused(call: Callable[[], Any], code: str, part: str) -> None:
    with refused(code, part, kind=InvalidInputError):
        call()
