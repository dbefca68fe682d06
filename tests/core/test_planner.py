import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import refused
from hydraulis import BalanceOptions, Cluster, CostProfile, InvalidInputError, Plan, Planner, balance, propose
from hydraulis.progress import ProgressCallback
from profiles import made_up_profile

LENGTHS = [31_000, 12_000, 900, 900, 450, 80]


@pytest.fixture(scope="module")
def planner() -> Planner:
    return Planner(CostProfile.preset("llama-32b-a800"), Cluster(gpus=64, gpus_per_node=8))


@pytest.fixture(scope="module")
def plan(planner: Planner) -> Plan:
    return planner.plan(LENGTHS)


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", ">i4"]
)
def test_lengths_may_have_any_integer_dtype(planner: Planner, dtype: str) -> None:
    lengths = np.array([100, 7, 31], dtype=dtype)
    assert planner.plan(lengths) == planner.plan([100, 7, 31])


@pytest.mark.parametrize(
    "take", [list, tuple, lambda numbers: numbers, lambda numbers: np.repeat(numbers, 2)[::2]]
)
def test_lengths_may_be_any_python_sequence(planner: Planner, take: Callable[[range], Any]) -> None:
    assert planner.plan(take(range(5, 9))) == planner.plan([5, 6, 7, 8])


@pytest.mark.parametrize(
    ("lengths", "named"),
    [
        ([5, 1.5], "sequence 1 is 1.5"),
        ([5, float("nan")], "sequence 1 is nan"),
        ([5, float("inf")], "sequence 1 is inf"),
        ([5.0, 6.0], "float64"),
        ([True, False], "sequence 0 is True"),
        (np.array([True]), "sequence 0 is True"),
        ([None], "sequence 0 is None"),
        (["5"], "sequence 0 is 5"),
        (np.array([None, 5], dtype=object), "sequence 0 is None"),
        ([[1, 2], [3, 4]], "2 dimensions"),
        (5, "'int'"),
        (None, "None"),
        ("55", "'str'"),
        ({5, 6}, "'set'"),
        ({5: 6}, "'dict'"),
        ((one for one in (5, 6)), "'generator'"),
    ],
)
def test_lengths_that_are_no_whole_numbers_are_refused(planner: Planner, lengths: Any, named: str) -> None:
    with refused("lengths_invalid", named, kind=InvalidInputError):
        planner.plan(lengths)


@pytest.mark.parametrize(
    ("lengths", "code", "parts"),
    [
        ([], "batch_empty", ()),
        (np.array([], dtype=np.int32), "batch_empty", ()),
        ([5, 0], "lengths_invalid", ("sequence 1 ", "length 0")),
        ([-5], "lengths_invalid", ("sequence 0 ", "-5")),
        (np.array([2**64 - 1], dtype=np.uint64), "lengths_invalid", ("sequence 0 ",)),
    ],
)
def test_lengths_out_of_range_are_refused(
    planner: Planner, lengths: Any, code: str, parts: tuple[str, ...]
) -> None:
    with refused(code, *parts, kind=InvalidInputError):
        planner.plan(lengths)


def test_a_sequence_that_no_strategy_admits_is_infeasible(planner: Planner) -> None:
    longest = planner.longest_admitted
    assert planner.plan([longest]).lengths.tolist() == [longest]
    with refused("sequence_too_long", "sequence 1", f"{longest + 1:,}", f"{longest:,}"):
        planner.plan([5, longest + 1])


def test_targets_equal_the_lengths_by_default(planner: Planner) -> None:
    assert planner.plan([5, 6]).targets.tolist() == [5, 6]
    assert planner.plan([5, 6], targets=np.array([4, 0], dtype=np.uint8)).targets.tolist() == [4, 0]


@pytest.mark.parametrize(
    ("targets", "code", "parts"),
    [
        ([4], "lengths_invalid", ("1 target", "2 sequences")),
        ([4, 7], "lengths_invalid", ("sequence 1 ", "7 target")),
        ([4, -1], "lengths_invalid", ("sequence 1 ", "-1 target")),
        ([0, 0], "batch_empty", ("target",)),
        ([4.5, 5.0], "lengths_invalid", ("targets", "sequence 0 ", 4.5)),
    ],
)
def test_wrong_targets_are_refused(
    planner: Planner, targets: list[float], code: str, parts: tuple[object, ...]
) -> None:
    with refused(code, *parts, kind=InvalidInputError):
        planner.plan([5, 6], targets=targets)


@pytest.mark.parametrize(
    ("strategies", "code"),
    [
        ([], "no_strategies"),
        ([""], "strategy_invalid"),
        (["65x<1>"], "strategy_unplaceable"),
        (["1x<tp3,pp5>"], "scheme_unknown"),
        (["1x<cp2>"], "scheme_unknown"),
    ],
)
def test_wrong_strategies_are_refused(strategies: list[str], code: str) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        Planner(CostProfile.preset("llama-32b-a800"), Cluster(64, 8), strategies=strategies)
    assert refusal.value.code == code


@pytest.mark.parametrize("gpus", [0, 12, -4, 2**40])
def test_a_cluster_has_whole_nodes(gpus: int) -> None:
    with refused("argument_invalid", f"{gpus:,}", 8):
        Cluster(gpus, 8)


@pytest.mark.parametrize(
    "name", ["lengths", "targets", "sequences", "micro_batch_offsets", "replica_offsets"]
)
def test_arrays_share_the_plans_memory_and_are_read_only(plan: Plan, name: str) -> None:
    array = getattr(plan, name)
    assert array.dtype == np.int64
    assert array.ndim == 1
    assert array.__array_interface__["data"] == getattr(plan, name).__array_interface__["data"]
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_arrays_outlive_the_plan(planner: Planner) -> None:
    assert planner.plan(LENGTHS).lengths.tolist() == LENGTHS


def test_offsets_cut_the_sequences_into_micro_batches_and_replicas(plan: Plan) -> None:
    sequences, offsets = plan.sequences.tolist(), plan.micro_batch_offsets.tolist()
    assert sorted(sequences) == list(range(len(LENGTHS)))
    assert (offsets[0], offsets[-1]) == (0, len(sequences))
    micro_batches = [sequences[start:end] for start, end in itertools.pairwise(offsets)]
    replicas = [micro_batches[start:end] for start, end in itertools.pairwise(plan.replica_offsets.tolist())]
    assert replicas == [replica.micro_batches for replica in plan.replicas]


def test_a_plan_has_predicted_times_and_a_bound(plan: Plan) -> None:
    assert plan.iteration_ms == max(replica.predicted_ms for replica in plan.replicas)
    assert plan.gap == pytest.approx(plan.iteration_ms / plan.lower_bound_ms - 1)
    assert plan.gap >= -1e-9
    assert (plan.cluster, plan.profile) == (Cluster(64, 8), "llama-32b-a800")
    assert f"Strategy {plan.strategy}" in plan.explain()


def test_instructions_run_every_micro_batch_forward_and_backward(planner: Planner) -> None:
    plan = planner.plan([12_000, 9_000, 9_000, 5_000])
    for replica in plan.replicas:
        for rank in replica.ranks:
            kinds = [type(step).__name__ for step in plan.instructions(rank)]
            assert kinds.count("Forward") == kinds.count("Backward") == len(replica.micro_batches)
            assert (plan.position(rank) is None) == (not replica.micro_batches)


@pytest.mark.parametrize("kind", ["ulysses", "ring"])
def test_a_plan_states_the_kind_of_context_parallelism(kind: str) -> None:
    profile = made_up_profile({"<1>": 64, "<tp2,cp2>": 256}, kind)
    planner = Planner(profile, Cluster(gpus=8, gpus_per_node=8), strategies=["1x<cp2,tp2>+4x<1>"])
    plan = Plan.from_json(planner.plan([200, 60, 50, 40, 3]).to_json())
    assert plan.strategy == "1x<tp2,cp2>+4x<1>"
    assert [replica.context for replica in plan.replicas] == [kind, None, None, None, None]
    assert [profile.context(replica.scheme) for replica in plan.replicas] == [kind, None, None, None, None]
    assert f" <tp2,cp2> {kind}  " in plan.explain()
    # Tensor ranks are next to each other, context ranks are not.
    position = plan.position(2)
    assert position is not None
    assert (position.stage, position.context_rank, position.tensor_rank) == (0, 1, 0)
    assert (position.tensor_group(2), position.context_group(2)) == ([2, 3], [0, 2])


def test_json_round_trips(planner: Planner, plan: Plan) -> None:
    text = plan.to_json()
    read = Plan.from_json(text)
    assert read == plan
    assert read.to_json() == text
    assert planner.check(read, LENGTHS) == []


def test_the_same_batch_gives_the_same_bytes(planner: Planner) -> None:
    again = Planner(CostProfile.preset("llama-32b-a800"), Cluster(gpus=64, gpus_per_node=8))
    assert again.plan(LENGTHS).to_json() == planner.plan(LENGTHS).to_json()


def _drop_a_sequence(document: dict[str, Any]) -> None:
    document["replicas"][0]["micro_batches"][0].pop()


def _repeat_a_sequence(document: dict[str, Any]) -> None:
    document["replicas"][0]["micro_batches"][0].append(document["replicas"][1]["micro_batches"][0][0])


def _share_a_rank(document: dict[str, Any]) -> None:
    document["replicas"][1]["ranks"] = document["replicas"][2]["ranks"]


def _promise_less_time(document: dict[str, Any]) -> None:
    document["replicas"][0]["predicted_ms"] /= 2


def _raise_the_bound(document: dict[str, Any]) -> None:
    document["lower_bound"]["ms"] = 2 * document["iteration_ms"]


@pytest.mark.parametrize(
    ("tamper", "code"),
    [
        (_drop_a_sequence, "sequence_missing"),
        (_repeat_a_sequence, "sequence_repeated"),
        (_share_a_rank, "rank_shared"),
        (_promise_less_time, "replica_time_wrong"),
        (_raise_the_bound, "bound_above_time"),
    ],
)
def test_the_checker_reports_a_tampered_plan(
    planner: Planner, plan: Plan, tamper: Callable[[dict[str, Any]], None], code: str
) -> None:
    document = json.loads(plan.to_json())
    tamper(document)
    broken = planner.check(Plan.from_json(json.dumps(document)), LENGTHS)
    assert code in [promise.split(":")[0] for promise in broken]


def test_the_checker_reports_other_lengths(planner: Planner, plan: Plan) -> None:
    assert [promise.split(":")[0] for promise in planner.check(plan, LENGTHS[::-1])] != []


@pytest.mark.parametrize("text", ["", "{}", '{"format": "other/1"}', "[1, 2"])
def test_a_document_that_is_no_plan_is_refused(text: str) -> None:
    with refused("plan_invalid", "Plan.to_json"):
        Plan.from_json(text)


def test_another_thread_runs_while_a_plan_is_made(planner: Planner) -> None:
    # Large enough for a few tenths of a second of native code.
    lengths = np.random.default_rng(0).integers(1, 2_000, 20_000)
    ticks: list[float] = []
    done = threading.Event()

    def tick() -> None:
        while not done.wait(0.001):
            ticks.append(time.perf_counter())

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        start = time.perf_counter()
        planner.plan(lengths)
        end = time.perf_counter()
    finally:
        done.set()
        thread.join()
    # With the GIL held there would be one at each edge at most.
    assert sum(start < moment < end for moment in ticks) >= 10


SMALL = Planner(
    CostProfile.preset("llama-7b-a800"),
    Cluster(gpus=8, gpus_per_node=8),
    strategies=["1x<tp8>", "1x<tp4>+2x<tp2>", "2x<tp2,pp2>", "1x<tp2,pp2>+1x<pp4>"],
)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    longest = SMALL.longest_admitted
    # Short sequences are common and the longest is rare, as in training data.
    length = st.one_of(st.integers(1, 2_000), st.integers(1, longest), st.just(longest))
    lengths = draw(st.lists(length, min_size=1, max_size=40))
    targets = [draw(st.integers(0, length)) for length in lengths]
    targets[0] = max(targets[0], 1)
    return lengths, targets


@given(batches())
def test_every_plan_keeps_its_promises(batch: tuple[list[int], list[int]]) -> None:
    lengths, targets = batch
    plan = SMALL.plan(lengths, targets)
    assert SMALL.check(plan, lengths, targets) == []
    assert Plan.from_json(plan.to_json()) == plan


def test_a_search_needs_no_list() -> None:
    profile, cluster = CostProfile.preset("llama-32b-a800"), Cluster(gpus=64, gpus_per_node=8)
    lengths = np.random.default_rng(3).integers(50, 9_000, size=80)
    found = Planner(profile, cluster, strategies="search").plan(lengths)
    listed = Planner(profile, cluster)
    assert listed.check(found, lengths) == []
    assert found.iteration_ms <= listed.plan(lengths).iteration_ms * 1.001
    assert "any strategies of this profile" in found.explain()


def test_another_text_than_search_is_refused() -> None:
    profile, cluster = CostProfile.preset("llama-32b-a800"), Cluster(gpus=64, gpus_per_node=8)
    with refused("strategy_invalid", "'search'"):
        Planner(profile, cluster, strategies="8x<tp4>")


LARGE = (CostProfile.preset("llama-32b-a800"), Cluster(gpus=1024, gpus_per_node=8))
LISTED = Planner(*LARGE)
MANY = 100 + np.arange(20_000) ** 2 * 37 % 9_001


@pytest.mark.parametrize(
    "work",
    [
        lambda _tell: LISTED.plan(MANY),
        lambda tell: LISTED.plan_lookahead([MANY, MANY], progress=tell),
        lambda tell: propose(*LARGE, [MANY], 2, progress=tell),
        lambda _tell: balance(
            np.linspace(11_000, 32_768, 30_000).astype(int),
            replicas=8,
            cap_tokens=32_768,
            barrier="micro_batch",
            linear_ms_per_token=1.0,
            extra_tokens=np.arange(30_000) * 7919 % 100,
            options=BalanceOptions(cap_extra_tokens=200),
        ),
    ],
)
def test_ctrl_c_interrupts_the_core(work: Callable[[ProgressCallback], object]) -> None:
    told: list[tuple[str, int]] = []
    heard, again = 0, threading.Event()

    def handle(_number: int, _frame: object) -> None:
        nonlocal heard
        heard += 1
        again.set()
        # One would be heard after the call too.
        if heard == 3:
            raise KeyboardInterrupt

    def press() -> None:
        for _ in range(3):
            again.clear()
            os.kill(os.getpid(), signal.SIGINT)
            assert again.wait(60)

    keys = threading.Thread(target=press)
    planned = False

    def plan() -> None:
        nonlocal planned
        keys.start()
        work(lambda step, done, _of: told.append((step, done)))
        planned = True

    before = signal.signal(signal.SIGINT, handle)
    try:
        with pytest.raises(KeyboardInterrupt):
            plan()
    finally:
        keys.join()
        signal.signal(signal.SIGINT, before)
    assert not planned
    # It was heard within the first plan.
    assert {done for _, done in told} <= {0}
