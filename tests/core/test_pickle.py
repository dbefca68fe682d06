"""Values of the extension are copied, and pass to other processes, as what they are."""

import copy
import inspect
import json
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

import hydraulis
from core.links import link, table
from helpers import at_least
from hydraulis import (
    BalanceOptions,
    Cluster,
    CostProfile,
    Extrapolation,
    LayerSplit,
    LengthHistogram,
    LinkRates,
    Network,
    Plan,
    Planner,
    Scheme,
    SearchBudget,
    Strategy,
    _core,
    balance,
    pack_windows,
    propose,
)
from profiles import made_up_profile

CLUSTER = Cluster(gpus=32, gpus_per_node=8)
PROFILE = CostProfile.preset("llama-7b-a800")
BATCHES = [[4_000, 900, 900, 450, 31_000, 80], [20_000, 64, 512, 7_000]]
LINKED = Planner(
    PROFILE,
    CLUSTER,
    strategies="search",
    memory="in_flight",
    link=link(25),
    budget=SearchBudget(dual_solves=3),
)
LISTED = Planner(PROFILE, CLUSTER, strategies=["4x<tp8>", "2x<tp8>+4x<tp4>"], max_strategies=2)
PLAN = LINKED.plan(BATCHES[0])
WINDOW = Planner(PROFILE, CLUSTER).plan_lookahead(BATCHES, switch_ms=5.0)
PROPOSAL = propose(PROFILE, CLUSTER, BATCHES, 2)
SIMULATION = LINKED.simulate(PLAN, slowdowns={0: 1.5})
PIPELINE = Planner(PROFILE, CLUSTER, strategies=["2x<tp4,pp4>"]).plan(BATCHES[0])
INSTRUCTIONS = {type(step): step for step in PIPELINE.instructions(4)}
OPTIONS = BalanceOptions(multiple_of=2, speeds=[1.0, 0.5], cap_extra_tokens=9)
BALANCE = balance(
    BATCHES[0],
    replicas=2,
    cap_tokens=32_768,
    linear_ms_per_token=1,
    quadratic_ms_per_token2=1e-3,
    barrier="step",
)


def extrapolation() -> Extrapolation:
    """Give that of a plan for a sequence four times as long as what was measured."""
    document = json.loads(made_up_profile({"<1>": 400}).to_json())
    for scheme in document["schemes"]:
        measured = {"longest_tokens": 100, "micro_batch_tokens": 100}
        scheme["fit"] = {"points": 9, "outliers": 0, "relative_error": 0.01, "range": measured}
    planner = Planner(CostProfile.from_json(json.dumps(document)), Cluster(gpus=1, gpus_per_node=1))
    found = planner.plan([400]).extrapolation
    assert found is not None
    return found


# What a rank works with, made of its own table and plan.
OF_A_RANK = {"BucketTransfer", "CostFit", "LocalSlice", "OptimizerShards", "ShardSlice", "Exchange"}

VALUES = [
    CLUSTER,
    PROFILE,
    PROFILE.model,
    SearchBudget(candidates=7, exchanges=0),
    LayerSplit(7, head_layers=2.5, stated=[[1, 6], [3, 2, 2]]),
    LengthHistogram([5, 9, 70], [3, 1, 4]),
    link(40),
    link(40).with_node_slowdowns([1.0, 2.5]),
    LinkRates(gigabytes_per_s=12.5, message_us=3),
    Network(token_bytes=8_192, inside_gigabytes_per_s=200, between_gigabytes_per_s=25, inside_latency_ms=0.1),
    table(2),
    table(2).parameters[0],
    Scheme("<tp4,cp2,pp2,selective>"),
    Scheme("<tp4,selective,full:12/40>"),
    Strategy("1x<tp16>+2x<tp4,pp2,full>"),
    LINKED,
    LISTED,
    PLAN,
    PLAN.replicas[0],
    WINDOW,
    PROPOSAL,
    PROPOSAL.strategies[0],
    BALANCE,
    OPTIONS,
    pack_windows(BATCHES[0], window_tokens=32_768),
    SIMULATION,
    SIMULATION.transfer_spans[0],
    SIMULATION.transfer_spans[-1],
    SIMULATION.gpu_time,
    SIMULATION.stages[0][0],
    SIMULATION.stages[0][0].memory,
    SIMULATION.timelines[0][0],
    PLAN.position(3),
    _core.Efficiency.shipped("H100"),
    extrapolation(),
    *INSTRUCTIONS.values(),
]


def content(value: object) -> object:
    """Give what can be read of a value, in plain types."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.tolist()
    if isinstance(value, list | tuple):
        return [content(one) for one in value]
    if type(value).__module__.partition(".")[0] != "hydraulis":
        return value
    members = [
        name for name in vars(type(value)) if not name.startswith("_") and name not in ("ONLINE", "PROOF")
    ]
    read = {name: getattr(value, name) for name in members}
    said = str(value) if type(value).__repr__ is not object.__repr__ else None
    return said, {name: content(one) for name, one in read.items() if not callable(one)}


def by_pickle(value: object) -> object:
    return pickle.loads(pickle.dumps(value))  # what was written the moment before


@pytest.mark.parametrize("again", [by_pickle, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_copied_or_unpickled_value_is_equal(value: object, again: Callable[[object], object]) -> None:
    made = again(value)
    assert type(made) is type(value)
    assert content(made) == content(value)
    assert pickle.dumps(made) == pickle.dumps(value)
    if type(value).__eq__ is not object.__eq__:
        assert made == value
        if type(value).__hash__ is not None:
            assert hash(made) == hash(value)


def test_every_native_class_is_pickled() -> None:
    classes = {name for name in at_least(40, _core.__all__) if inspect.isclass(getattr(_core, name))}
    assert {type(value).__name__ for value in VALUES} == classes - OF_A_RANK
    assert not OF_A_RANK & set(hydraulis.__all__)


@pytest.mark.parametrize("planner", [LINKED, LISTED], ids=["search", "list"])
def test_an_unpickled_planner_makes_the_same_plans(planner: Planner) -> None:
    again = by_pickle(planner)
    assert isinstance(again, Planner)
    used = None if planner.max_strategies is None else ["4x<tp8>"]
    for batch in BATCHES:
        plan = planner.plan(batch, used=used)
        assert again.plan(batch, used=used) == plan
        assert again.check(plan, batch) == []


def test_arrays_of_unpickled_values_are_read_only() -> None:
    for value in (by_pickle(PLAN), by_pickle(BALANCE)):
        assert isinstance(value, Plan | hydraulis.Balance)
        assert not value.sequences.flags.writeable


def plan_there(planner: Planner, batch: list[int]) -> Plan:
    return planner.plan(batch)


def test_a_planner_and_its_plans_cross_processes() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
        assert processes.submit(plan_there, LINKED, BATCHES[0]).result() == PLAN
