"""No order of events stops all ranks: replays of drawn plans, and of wrong orders.

The launches are derived from plans (`launches.py`); recorded steps prove that the runtime launches the same.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice

import pytest

from helpers import IS_SOAK
from hydraulis import Cluster, InvalidInputError, Plan, Planner, Scheme, Strategy
from hydraulis._core import Forward, LayerSplit, OptimizerShards, SendReceive, transfer
from hydraulis.config.kinds import ShardingKind
from hydraulis.runtime.redistribute.launch_order import bucket_stages
from hydraulis.runtime.redistribute.parameter_gather import loads
from hydraulis.runtime.state.parameters import ModelParameters
from profiles import made_up_profile
from ranks import run_ranks
from runtime.redistribute.launches import Instruction, Order, Step, launches, safe_order
from runtime.redistribute.recorded_workers import Recorded, recorded
from runtime.redistribute.replay import Adversary, HostWaits, replay
from runtime.tiny import planner_for
from small_model import small_config

CAPS = {
    "<1>": 32,
    "<tp2>": 64,
    "<tp4>": 96,
    "<pp2>": 32,
    "<pp3>": 32,
    "<pp4>": 32,
    "<tp2,pp2>": 64,
    "<tp2,pp4>": 64,
    "<cp2>": 64,
    "<cp2,pp2>": 64,
    "<tp2,cp2>": 96,
}
PROFILE = made_up_profile(CAPS)
ADVERSARIES = [
    Adversary(host_waits, resident, opens_pairs)
    for host_waits in HostWaits
    for resident in (None, 1, 3)
    for opens_pairs in (False, True)
]
ONE_BY_ONE = Adversary(HostWaits.LAUNCHES)
NUM_DRAWN = 20_000 if IS_SOAK else 2_000


def drawn_plans(rng: random.Random, schemes: Sequence[str] = tuple(CAPS)) -> Iterator[tuple[Plan, int]]:
    """Draw plans of some schemes and the ranks of their nodes."""
    while True:
        gpus = rng.choice([2, 2, 4, 4, 8])
        node = rng.choice([size for size in (1, 2, 4, 8) if size <= gpus])
        counts: Counter[str] = Counter()
        free = gpus
        while fitting := [scheme for scheme in schemes if Scheme(scheme).ranks <= free]:
            scheme = rng.choice(fitting)
            counts[scheme] += 1
            free -= Scheme(scheme).ranks
            if rng.random() < 0.2:
                break
        text = "+".join(f"{count}x{scheme}" for scheme, count in counts.items())
        lengths = [rng.randint(1, 32) for _ in range(rng.randint(1, 3 * gpus))]
        # Not every strategy can be placed in nodes of any size.
        with suppress(InvalidInputError):
            yield Planner(PROFILE, Cluster(gpus, node), strategies=[text]).plan(lengths, lengths), node


def drawn_steps(count: int, seed: int) -> Iterator[Step]:
    """Draw plans, and for each a few layers of stages, micro-batches without sequences, and loads."""
    rng = random.Random(seed)
    steps = (step for plan, node in drawn_plans(rng) for step in drawn_steps_of(rng, plan, node))
    return islice(steps, count)


def drawn_steps_of(rng: random.Random, plan: Plan, node: int) -> Iterator[Step]:
    for _ in range(4):
        # A layer for each stage at least.
        num_layers = rng.randint(4, 5)
        has_sequences = []
        for replica in plan.replicas:
            # Any but one may be without: the planner leaves fewer without than it may.
            drawn = [rng.random() < 0.9 for _ in replica.micro_batches]
            if drawn:
                drawn[rng.randrange(len(drawn))] = True
            has_sequences.append(drawn)
        sizes = [rng.randint(1, 4) for _ in range(num_layers + 2)]
        gathered = list(loads(sizes, rng.choice([2, 8, 100])))
        split = LayerSplit(num_layers, head_layers=rng.choice([0.0, 1.0]))
        yield Step(plan, split, has_sequences, node, gathered)


def with_the_last_forward(
    instructions: Sequence[Instruction], stages: Sequence[int], stage: int, last: int
) -> list[int]:
    """Start all buckets before the last forward, if their gradients are complete: the order of once."""
    del stage
    (start,) = (
        n for n, one in enumerate(instructions) if isinstance(one, Forward) and one.micro_batch == last
    )
    return [len(stages)] * start + [0] * (len(instructions) - start + 1)


def after_the_last_sent_activations(
    instructions: Sequence[Instruction], stages: Sequence[int], stage: int, last: int
) -> list[int]:
    """Start all buckets once nothing is owed to later stages."""
    safe = safe_order(instructions, stages, stage, last)
    sent = [n for n, one in enumerate(instructions, 1) if isinstance(one, SendReceive) and one.next]
    sent = [n for n in sent if instructions[n - 1].send == last]  # type: ignore[union-attr]
    start = sent[0] if sent else 0
    return safe[:start] + [0] * (len(safe) - start)


def before_the_last_message(
    instructions: Sequence[Instruction], stages: Sequence[int], stage: int, last: int
) -> list[int]:
    """Let buckets of earlier stages follow a stage's own ones at once."""
    safe = safe_order(instructions, stages, stage, last)
    own = stages.index(stage)
    return [0 if lowest <= own else lowest for lowest in safe]


def one_message_late(
    instructions: Sequence[Instruction], stages: Sequence[int], stage: int, last: int
) -> list[int]:
    """Start buckets of later stages one backward later, and a stage's own ones as they are."""
    safe = safe_order(instructions, stages, stage, last)
    own = stages.index(stage)
    return [max(own, safe[max(0, n - 2)]) if n + 1 < len(safe) else safe[n] for n in range(len(safe))]


def test_no_random_step_deadlocks_if_every_launch_waits_for_the_one_before() -> None:
    strategies = set()
    for step in drawn_steps(NUM_DRAWN, seed=1):
        assert replay(launches(step), ONE_BY_ONE) == [], step
        strategies.add(step.plan.strategy)
    assert len(strategies) > 50


def drawn_rounds(count: int, seed: int, sharding: ShardingKind) -> Iterator[Step]:
    """Draw steps of schemes without stages, with sharded gradients or parameters."""
    rng = random.Random(seed)
    plans = drawn_plans(rng, [scheme for scheme in CAPS if Scheme(scheme).pp == 1])
    steps = (step for plan, node in plans for step in drawn_steps_of(rng, plan, node))
    for step in islice(steps, count):
        first, has_frozen = rng.choice([0, 0, 1, 3]), rng.random() < 0.5
        if sharding == "parameters":
            step = step._replace(first_trained=first, has_frozen=has_frozen)
        yield step._replace(sharding=sharding)


@pytest.mark.parametrize("sharding", ["gradients", "parameters"])
def test_no_random_step_in_rounds_deadlocks(sharding: ShardingKind) -> None:
    unequal = 0
    for step in drawn_rounds(NUM_DRAWN // 8, 4, sharding):
        assert replay(launches(step), ONE_BY_ONE) == [], step
        unequal += len({sum(one) for one in step.has_sequences}) > 1
    assert unequal > 50
    for adversary in ADVERSARIES:
        for step in drawn_rounds(NUM_DRAWN // 200, 5, sharding):
            assert replay(launches(step), adversary) == [], step


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_no_random_step_deadlocks_under_an_adversary(adversary: Adversary) -> None:
    for step in drawn_steps(NUM_DRAWN // 50, seed=2):
        assert replay(launches(step), adversary) == [], step


@pytest.mark.parametrize("order", [with_the_last_forward, after_the_last_sent_activations])
def test_an_order_with_pending_messages_deadlocks_if_hosts_wait_for_kernels(order: Order) -> None:
    stuck = [
        replay(launches(step, order), Adversary(HostWaits.COMPUTATIONS)) for step in drawn_steps(60, seed=3)
    ]
    assert any(stuck)
    # Without an adversary it does finish.
    for step in drawn_steps(60, seed=3):
        assert replay(launches(step, order), Adversary()) == []


@pytest.mark.parametrize("order", [before_the_last_message, one_message_late])
def test_orders_near_the_rule_deadlock_if_every_launch_waits(order: Order) -> None:
    assert any(replay(launches(step, order), ONE_BY_ONE) for step in drawn_steps(60, seed=4))


def test_launches_with_the_last_forward_deadlock_two_stages_with_spread_owners() -> None:
    """Of two stages each rank owns a half of every bucket, because the run also has <tp2>."""
    config = small_config()
    parameters = ModelParameters.from_config(config)
    schemes = [scheme for text in ("1x<pp2>", "1x<tp2>") for scheme in Strategy(text).schemes]
    cluster = Cluster(2, 2)
    shards = OptimizerShards(parameters.table, cluster, schemes)
    plan = planner_for(2, ["1x<pp2>"]).plan([30, 30, 30], [29, 29, 29])
    transfers = [transfer(shards, plan, rank) for rank in range(2)]
    num_buckets = config.num_hidden_layers + 2
    step = Step(plan, parameters.table.split, [[True] * 3], 2, [range(num_buckets)], transfers)
    (first, second) = replay(launches(step, with_the_last_forward), Adversary(HostWaits.COMPUTATIONS))
    # The first stage's host waits for a bucket of the second one, which waits for its activations.
    assert first.next == ("forward", 2, 0)
    assert first.incomplete[0][0] == "inside"
    assert second.incomplete[0] == ("message", 0, 1, 2)
    for adversary in ADVERSARIES:
        assert replay(launches(step), adversary) == []


def test_the_bucket_of_a_layer_belongs_to_its_stage() -> None:
    (scheme,) = Strategy("1x<pp3>").schemes
    assert bucket_stages(LayerSplit(5, stated=[[1, 3, 1]]), scheme) == [0, 0, 1, 1, 1, 2, 2]


# Ranks, ranks of a node, and strategies; <tp2> and <pp2> spread the owners of a stage over several ranks.
FROZEN = ("model.embed_tokens.*", "model.layers.0.*", "*mlp*")
RECORDED: list[tuple[int, int, list[str], ShardingKind, tuple[str, ...]]] = [
    (2, 2, ["1x<pp2>", "1x<tp2>", "1x<pp2>"], "none", ()),
    (4, 4, ["1x<pp3>+1x<1>", "2x<pp2>", "1x<tp2,pp2>", "1x<pp2>+1x<tp2>", "1x<tp4>"], "none", ()),
    (4, 2, ["1x<tp2,pp2>", "1x<pp3>+1x<1>", "4x<1>"], "none", ()),
    (4, 4, ["1x<tp2>+2x<1>", "1x<cp2>+1x<1>", "4x<1>"], "gradients", ()),
    (4, 2, ["4x<1>", "1x<tp2>+2x<1>", "1x<tp2>"], "gradients", ()),
    (4, 4, ["1x<tp2>+2x<1>", "1x<cp2>+1x<1>", "4x<1>"], "parameters", ()),
    (4, 2, ["4x<1>", "1x<tp2>+2x<1>", "1x<tp2>"], "parameters", ()),
    (4, 4, ["4x<1>", "1x<tp2>+2x<1>"], "parameters", FROZEN),
    (4, 2, ["4x<1>", "1x<tp2>+2x<1>"], "parameters", FROZEN),
]
LENGTHS = [20, 30, 18, 9, 30, 7, 25, 3, 30]


@pytest.mark.parametrize(("num_ranks", "node", "strategies", "sharding", "frozen"), RECORDED)
def test_steps_with_synchronous_communication_end_and_launch_what_is_derived(
    num_ranks: int, node: int, strategies: list[str], sharding: ShardingKind, frozen: tuple[str, ...]
) -> None:
    config = small_config(num_hidden_layers=4)
    by_rank: list[list[Recorded]] = run_ranks(
        num_ranks, recorded, config, strategies, LENGTHS, sharding, frozen, ranks_per_node=node
    )
    for number, text in enumerate(strategies):
        plan = planner_for(num_ranks, [text]).plan(LENGTHS, [length - 1 for length in LENGTHS])
        has_sequences = [[bool(one) for one in replica.micro_batches] for replica in plan.replicas]
        parameters = ModelParameters.from_config(config, frozen)
        counts = by_rank[0][number].loads
        ends = [sum(counts[: place + 1]) for place in range(len(counts))]
        gathered = [range(end - count, end) for end, count in zip(ends, counts, strict=True)]
        step = Step(plan, parameters.table.split, has_sequences, node, gathered, sharding=sharding)
        derived = launches(step._replace(first_trained=2 if frozen else 0, has_frozen=bool(frozen)))
        for rank, expected in enumerate(derived):
            real = by_rank[rank][number]
            names = [one.name for one in expected if one.stream not in ("tensor", "context")]
            assert real.launches == names, (text, rank)
            assert real.loss == real.usual_loss
