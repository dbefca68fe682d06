"""A plan's iteration under stated conditions, from Python."""

import json

import numpy as np
import pytest

from core.links import link
from helpers import refused
from hydraulis import Cluster, CostProfile, InvalidInputError, Network, Plan, Planner, Simulation
from profiles import made_up_profile

CAPS = {"<1>": 400, "<pp2>": 500}
WAYS = ("parameters", "gradients")
PLANNER = Planner(made_up_profile(CAPS), Cluster(gpus=8, gpus_per_node=4), strategies=["2x<pp2>+3x<1>"])


@pytest.fixture(scope="module")
def plan() -> Plan:
    return PLANNER.plan([400, 300, 300, 220, 150, 90, 60, 60, 20, 7])


def parts(simulation: Simulation) -> list[float]:
    time = simulation.gpu_time
    return [
        time.compute_ms,
        time.slower_rank_ms,
        time.bubble_ms,
        time.slower_replica_ms,
        time.unused_ms,
        time.transfers_ms,
    ]


def test_without_conditions_the_simulation_equals_the_prediction(plan: Plan) -> None:
    simulation = PLANNER.simulate(plan)
    assert simulation.iteration_ms == pytest.approx(plan.iteration_ms)
    assert simulation.replica_ms == pytest.approx([replica.predicted_ms for replica in plan.replicas])
    spans = [[(s.stage, s.micro_batch, s.end_ms) for s in spans] for spans in simulation.timelines]
    assert spans == [[(s.stage, s.micro_batch, s.end_ms) for s in spans] for spans in PLANNER.timeline(plan)]
    assert sum(parts(simulation)) == pytest.approx(8 * simulation.iteration_ms)
    assert simulation.gpu_time.unused_ms == pytest.approx(simulation.iteration_ms)


def test_stages_save_the_tokens_of_their_micro_batches_in_flight(plan: Plan) -> None:
    for replica, stages in zip(plan.replicas, PLANNER.simulate(plan).stages, strict=True):
        tokens = [int(plan.lengths[ids].sum()) for ids in replica.micro_batches]
        assert [stage.saved_tokens.max() for stage in stages] == [stage.peak_tokens for stage in stages]
        assert stages[-1].peak_tokens == max(tokens)
        assert stages[0].peak_tokens == max(
            sum(tokens[at : at + len(stages)]) for at in range(max(1, len(tokens) - len(stages) + 1))
        )
        for stage in stages:
            assert stage.saved_from_ms.shape == stage.saved_tokens.shape == (2 * len(tokens),)
            assert (np.diff(stage.saved_from_ms) >= 0).all()
            assert stage.memory.total_bytes <= 10_000_000_000
            # 1,000 bytes a token of as many micro-batches as there are stages; nothing else but what is held.
            # Of the last stage nothing more is known.
            assert stage.memory.activation_bytes == 1_000 * stage.peak_tokens / len(stages)
            assert stage.memory.reserved_bytes == stage.memory.optimizer_bytes == 0


def test_each_stage_has_the_memory_that_the_profile_states(plan: Plan) -> None:
    document = json.loads(made_up_profile(CAPS).to_json())
    (pipeline,) = (entry for entry in document["schemes"] if entry["scheme"] == "<pp2>")
    pipeline |= {"resident_bytes": [9_000_000, 8_000_000], "activation_bytes_per_token": [1_000, 700]}
    profile = CostProfile.from_json(json.dumps(document))
    planner = Planner(profile, Cluster(gpus=8, gpus_per_node=4), strategies=["2x<pp2>+3x<1>"])
    by_rank = planner.rank_memory(plan)
    for replica, stages in zip(plan.replicas, planner.simulate(plan).stages, strict=True):
        if replica.scheme.pp == 2:
            memory = [(stage.memory.resident_bytes, stage.memory.activation_bytes) for stage in stages]
            # Two micro-batches are in flight on the first, for 1,000 bytes; one on the last, for 700.
            first, last = (stage.peak_tokens for stage in stages)
            assert memory == [(9_000_000, 500 * first), (8_000_000, 700 * last)]
            of_ranks = [by_rank[rank] for rank in replica.ranks]
            assert [one and (one.resident_bytes, one.activation_bytes) for one in of_ranks] == memory


def test_a_slow_rank_and_slow_links_cost_time(plan: Plan) -> None:
    busy = [[stage.busy_ms for stage in stages] for stages in PLANNER.simulate(plan).stages]
    slow = PLANNER.simulate(plan, slowdowns=dict.fromkeys(plan.replicas[0].ranks[1:], 1.5))
    assert [stage.busy_ms for stage in slow.stages[0]] == pytest.approx([busy[0][0], 1.5 * busy[0][1]])
    assert [stage.busy_ms for stage in slow.stages[1]] == busy[1]
    everyone = PLANNER.simulate(plan, slowdowns=dict.fromkeys(range(8), 1.5))
    assert everyone.iteration_ms == pytest.approx(1.5 * plan.iteration_ms)
    wires = {"token_bytes": 8192.0, "inside_gigabytes_per_s": 0.5, "between_gigabytes_per_s": 0.1}
    linked = PLANNER.simulate(plan, network=Network(**wires, inside_latency_ms=1.0))
    assert linked.gpu_time.bubble_ms > PLANNER.simulate(plan).gpu_time.bubble_ms


def test_a_step_is_simulated_with_its_transfers(plan: Plan) -> None:
    without = PLANNER.simulate(plan)
    assert (without.step_ms, without.transfer_ms, without.overlapped_ms) == (without.iteration_ms, 0, 0)
    assert without.transfer_spans == []
    planner = Planner(
        made_up_profile(CAPS), Cluster(gpus=8, gpus_per_node=4), strategies=["2x<pp2>+3x<1>"], link=link(1e3)
    )
    linked = planner.plan(plan.lengths)
    step = planner.simulate(linked)
    assert step.step_ms == pytest.approx(linked.step_ms)
    assert step.transfer_ms == pytest.approx(linked.transfer_ms)
    assert sum(parts(step)) == pytest.approx(8 * step.step_ms)
    assert step.gpu_time.transfers_ms == pytest.approx(8 * step.transfer_ms)
    ends = {what: max(span.end_ms for span in step.transfer_spans if span.kind == what) for what in WAYS}
    assert ends["gradients"] == pytest.approx(step.step_ms)
    alone = sum(span.end_ms - span.start_ms for span in step.transfer_spans)
    assert alone == pytest.approx(step.transfer_ms + step.overlapped_ms)
    # A first forward ends no earlier than its last parameters are there.
    last = max(
        span.end_ms for spans in step.timelines for span in spans if span.micro_batch == 0 and span.forward
    )
    assert last >= ends["parameters"]
    slow = planner.simulate(linked, link=link(100))
    assert slow.iteration_ms == step.iteration_ms
    assert slow.transfer_ms > step.transfer_ms
    busy = planner.simulate(linked, slowdowns=dict.fromkeys(range(8), 4.0))
    assert busy.overlapped_ms > step.overlapped_ms


def test_invalid_conditions_are_refused(plan: Plan) -> None:
    with refused("argument_invalid", "rank 8", "slowdown 2", "0 to 7"):
        PLANNER.simulate(plan, slowdowns={8: 2.0})
    for rank in (-1, 2**32, 2**63, 2**200):
        with refused("argument_invalid", "a rank of slowdowns is", rank if rank < 2**100 else ""):
            PLANNER.simulate(plan, slowdowns={rank: 2.0})
    with refused("argument_invalid", "gigabytes_per_s", 0):
        Network(token_bytes=1, inside_gigabytes_per_s=0, between_gigabytes_per_s=1)


def test_a_plan_of_another_profile_is_refused(plan: Plan) -> None:
    other = Planner(CostProfile.preset("llama-32b-a800"), plan.cluster)
    with pytest.raises(InvalidInputError) as error:
        other.simulate(plan)
    assert error.value.code == "scheme_unknown"


def test_a_plan_for_another_cluster_is_refused(plan: Plan) -> None:
    larger = Cluster(gpus=16 * plan.cluster.gpus, gpus_per_node=8)
    other = Planner(CostProfile.preset("llama-32b-a800"), larger)
    for refuse in (other.simulate, other.rank_memory):
        with refused("plan_mismatch", larger.gpus, 8):
            refuse(plan)
