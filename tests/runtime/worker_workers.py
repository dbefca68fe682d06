"""Workers of the tests of the worker: training steps, compared with one process."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
import torch.distributed as dist

from hydraulis import Cluster, CostProfile, Link, Plan, Planner, Scheme, Strategy
from hydraulis.config.kinds import CheckpointingKind, ContextKind, MemoryRule, ShardingKind
from hydraulis.config.model import ModelConfig
from hydraulis.config.optimizer import OptimizerConfig
from hydraulis.config.train import TrainConfig
from hydraulis.data.tokens import MaskedTokens, SequenceTokens, count_targets
from hydraulis.errors import HydraulisError
from hydraulis.planner.profile_document import with_schemes
from hydraulis.runtime.memory import iteration_memory
from hydraulis.runtime.pipeline.stage import Stage
from hydraulis.runtime.placement import placement_of
from hydraulis.runtime.ranks import host
from hydraulis.runtime.ranks.distributed import ranks_per_node
from hydraulis.runtime.ranks.rank_zero import from_rank_zero
from hydraulis.runtime.redistribute.redistribution import Redistribution
from hydraulis.runtime.state.parameters import ModelParameters
from hydraulis.runtime.step import evaluate, train_step
from hydraulis.runtime.worker import Worker
from profiles import made_up_profile
from runtime.gathered import gather
from runtime.redistribute.wire import Sent, least_bytes
from runtime.tiny import train_config
from small_model import small_config

SEED = 11
_CAPS = {
    "<1>": 64,
    "<tp2>": 96,
    "<tp4>": 160,
    "<pp2>": 64,
    "<pp3>": 64,
    "<pp4>": 64,
    "<tp2,pp2>": 96,
    "<tp2,pp3>": 96,
    "<tp2,pp4>": 96,
    "<tp4,pp2>": 160,
    "<cp2>": 96,
    "<cp3>": 128,
    "<cp4>": 160,
    "<cp8>": 256,
    "<cp2,pp2>": 96,
    "<cp2,pp3>": 96,
    "<tp2,cp2>": 160,
    "<tp4,cp2>": 256,
    "<tp2,cp2,pp2>": 160,
}
# Of each scheme under each kind of checkpointing.
CAPS = {
    str(Scheme(text).with_checkpointing(kind)): cap
    for text, cap in _CAPS.items()
    for kind in get_args(CheckpointingKind)
}
# Of models whose numbers of heads are multiples of 3.
CAPS_OF_THIRDS = {"<tp3>": 128, "<tp6>": 160, "<tp3,cp2>": 160}
Batch = Sequence[SequenceTokens]


class Step(NamedTuple):
    """One iteration, as the tests compare it.

    Attributes:
        strategy: Strategy of the plan.
        idle_ranks: Ranks that had no work.
        loss: Loss of the batch.
        gradients: Gradients at the owners, before the optimizer.
        parameters: Parameters after the optimizer.
        sent_bytes: Bytes that all ranks gave to collectives of transfers for other ranks of their nodes,
            and for ranks of other nodes.
        least_bytes: Bytes that had to be sent, by the slices of all ranks.
        most_tokens: Most tokens of a micro-batch of a pipeline, in caps.
        num_empty: Number of micro-batches without sequences.
        micro_batches: Number of micro-batches of each replica.
    """

    strategy: str
    idle_ranks: int
    loss: float
    gradients: dict[str, torch.Tensor]
    parameters: dict[str, torch.Tensor]
    sent_bytes: tuple[int, int] = (0, 0)
    least_bytes: tuple[int, int] = (0, 0)
    most_tokens: float = 0.0
    num_empty: int = 0
    micro_batches: tuple[int, ...] = ()


def train(
    config: ModelConfig,
    optimizer: OptimizerConfig,
    dtype: torch.dtype,
    steps: Sequence[tuple[str, Batch]],
    context: ContextKind = "ulysses",
    stage_layers: tuple[tuple[int, ...], ...] = (),
    profiles: Mapping[str, str] | None = None,
    memory: MemoryRule = "per_micro_batch",
    sharding: ShardingKind = "none",
    frozen: tuple[str, ...] = (),
) -> list[Step] | None:
    """Run each batch under its strategy; rank 0 returns the steps.

    Args:
        config: Configuration of the model.
        optimizer: AdamW's settings.
        dtype: Number type of the model.
        steps: Batches, each with its strategy, or with the name of the one of `profiles` for its search.
        context: Kind of context parallelism.
        stage_layers: Layers of each stage, where they are stated.
        profiles: Cost profiles as JSON, by name, of schemes among `CAPS`.
        memory: Memory rule of all plans.
        sharding: Tensors that ranks hold in parts.
        frozen: Patterns of parameters that are not trained.
    """
    searched = {name: CostProfile.from_json(text) for name, text in (profiles or {}).items()}
    listed = {scheme for text, _ in steps if text not in searched for scheme in Strategy(text).schemes}
    schemes = listed.union(Scheme(text) for profile in searched.values() for text in profile.schemes)
    settings = train_config(
        steps=len(steps),
        seed=SEED,
        dtype=dtype,
        stage_layers=stage_layers,
        sharding=sharding,
        frozen=frozen,
    )
    worker = Worker(config, optimizer, settings, schemes=sorted(schemes))
    assert worker.parameters.table.split.stated == sorted(map(list, stage_layers), key=len)
    profile = with_sharding(with_schemes(made_up_profile(caps_of(worker), context), worker.schemes), sharding)
    records = [_step(worker, searched.get(text, profile), text, batch, memory) for text, batch in steps]
    return records if dist.get_rank() == 0 else None


def with_sharding(profile: CostProfile, sharding: ShardingKind) -> CostProfile:
    """State the sharding in a profile of schemes that admit it."""
    return CostProfile.from_json(json.dumps(json.loads(profile.to_json()) | {"sharding": sharding}))


def caps_of(worker: Worker) -> dict[str, int]:
    """Return the caps of all known schemes, and of the worker's other schemes of the same degrees."""
    caps = CAPS | CAPS_OF_THIRDS
    degrees = {
        str(scheme): str(Scheme(f"<tp{scheme.tp},cp{scheme.cp},pp{scheme.pp}>")) for scheme in worker.schemes
    }
    return caps | {text: caps[usual] for text, usual in degrees.items()}


def train_all(runs: Sequence[tuple[Any, ...]]) -> list[list[Step] | None]:
    """Train several models one after another in one process group; each run has the arguments of `train`."""
    return [train(*run) for run in runs]


def norm_counted_twice(
    config: ModelConfig, optimizer: OptimizerConfig, steps: Sequence[tuple[str, Batch]]
) -> list[Step] | None:
    """Train as `train` does, but double the gradient of each norm on rank 1, as a hook too many would."""
    register_hooks = Redistribution.register_hooks

    def doubling(self: Redistribution, stage: Stage) -> None:
        table = ModelParameters.from_config(config)
        for index, parameter in stage.trained.items():
            if dist.get_rank() == 1 and table.names[index].endswith("layernorm.weight"):
                parameter.register_post_accumulate_grad_hook(_double)
        register_hooks(self, stage)

    setattr(Redistribution, "register_hooks", doubling)  # noqa: B010
    try:
        return train(config, optimizer, torch.float64, steps)
    finally:
        setattr(Redistribution, "register_hooks", register_hooks)  # noqa: B010


def _double(parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(2)


def sequences_read(config: ModelConfig, batch: Batch) -> tuple[set[int], set[int]]:
    """Give the sequences that this rank of 2x<1> reads, and those that its plan gives it."""
    worker = Worker(
        config, OptimizerConfig(), TrainConfig(steps=1, device="cpu"), schemes=Strategy("2x<1>").schemes
    )
    cluster = Cluster(gpus=2, gpus_per_node=2)
    planner = Planner(made_up_profile(CAPS), cluster, strategies=["2x<1>"])
    plan = planner.plan([len(tokens) for tokens in batch], [count_targets(tokens) for tokens in batch])
    read = set()

    def reading(sequence: int) -> SequenceTokens:
        read.add(sequence)
        return batch[sequence]

    train_step(worker, plan, reading)
    replica = next(one for one in plan.replicas if dist.get_rank() in one.ranks)
    return read, {sequence for sequences in replica.micro_batches for sequence in sequences}


def _step(
    worker: Worker, profile: CostProfile, strategy: str, batch: Batch, memory: MemoryRule = "per_micro_batch"
) -> Any:
    lengths = np.array([len(tokens) for tokens in batch])
    targets = np.array([count_targets(tokens) for tokens in batch])
    world_size, node = dist.get_world_size(), ranks_per_node()
    cluster = Cluster(gpus=world_size, gpus_per_node=node)
    link = Link(
        worker.parameters.table,
        gigabytes_per_s=1.0,
        parameter_bytes=worker.local_shard.parameter.element_size(),
        gradient_bytes=worker.local_shard.gradient.element_size(),
    )
    strategies = "search" if profile.name == strategy else [strategy]
    planner = Planner(profile, cluster, strategies=strategies, link=link, memory=memory)
    plan = Plan.from_json(from_rank_zero(lambda: planner.plan(lengths, targets).to_json()))
    assert planner.check(plan, lengths, targets) == []
    packed = [(replica, sequences) for replica in plan.replicas for sequences in replica.micro_batches]
    num_empty = sum(not sequences for _, sequences in packed)
    # Evaluation runs the same lists without their backward half, and gathers sharded parameters.
    is_evaluated = num_empty > 0 or worker.train.sharding == "parameters"
    evaluated = evaluate(worker, plan, batch.__getitem__) if is_evaluated else None
    sent = Sent(worker, node)
    # Rooms take turns.
    staging = sorted(room.data_ptr() for room in worker.redistribution.staging)
    gathers_frozen = worker.redistribution._frozen_placement != placement_of(plan)
    # Memory is counted in other tests; here the count would take a fourth of the ranks' time.
    setattr(iteration_memory, "_saved_activations", lambda *_: None)  # noqa: B010
    with sent.counted():
        result = train_step(worker, plan, batch.__getitem__)
    assert sorted(room.data_ptr() for room in worker.redistribution.staging) == staging, (
        "a strategy allocates"
    )
    assert evaluated is None or abs(evaluated / result.loss - 1) < 1e-12
    least = least_bytes(worker, plan, node, with_frozen=gathers_frozen)
    trained = least_bytes(worker, plan, node, with_frozen=False) if gathers_frozen else least
    wire = torch.tensor([sent.inside_bytes, sent.crossing_bytes, *least, trained.crossing])
    host.all_reduce(wire)
    inside, crossing, least_inside, least_crossing, trained_crossing = wire.tolist()
    # Two counts by slices, this one and the plan's, which does not know the ranks' earlier positions.
    assert plan.moved_bytes == trained_crossing
    gradients = gather(worker.optimizer_shard, worker.optimizer_shard.gradient)
    parameters = gather(worker.optimizer_shard, worker.optimizer_shard.master) or {}
    working = [plan.position(rank) for rank in range(dist.get_world_size())]
    return Step(
        plan.strategy,
        working.count(None),
        result.loss,
        gradients or {},
        {name: value for name, value in parameters.items() if worker.parameters.is_trained(name)},
        (inside, crossing),
        (least_inside, least_crossing),
        max(lengths[sequences].sum() / replica.cap_tokens for replica, sequences in packed),
        num_empty,
        tuple(len(replica.micro_batches) for replica in plan.replicas),
    )


def refusals() -> list[str]:
    """Offer plans that do not go with ranks, model or sequences; give the codes of the refusals."""
    # One head, which two context ranks cannot share; the last token of the vocabulary is 60.
    config = small_config(vocab_size=61, num_attention_heads=1, num_key_value_heads=1)
    scheme = Strategy("1x<1>").schemes[0]
    worker = Worker(config, OptimizerConfig(), TrainConfig(steps=1), schemes=[scheme])
    sound = [np.full(3, 60), np.full(4, 60)]
    masked = MaskedTokens(np.zeros(4, dtype=np.int64), np.array([True, False, True, False]))
    long_mask = MaskedTokens(np.zeros(4, dtype=np.int64), np.array([False, True, True, True, False]))
    codes = []
    for gpus, strategy, targets, last in (
        (4, "2x<1>", [2, 3], sound[1]),
        (2, "1x<cp2>", [2, 3], sound[1]),
        (2, "1x<pp2>", [2, 3], sound[1]),
        (2, "2x<1>", [0, 0], sound[1]),
        (2, "2x<1>", [2, 3], masked),
        (2, "2x<1>", [2, 3], long_mask),
        (2, "2x<1>", [2, 3], np.zeros(5, dtype=np.int64)),
        (2, "2x<1>", [2, 3], np.array([0, 61, 0, 0])),
        (2, "2x<1>", [2, 3], np.array([0, 60, -1, 0])),
        (2, "2x<1>", [2, 3], None),
    ):
        cluster = Cluster(gpus=gpus, gpus_per_node=8)
        planner = Planner(made_up_profile(CAPS), cluster, strategies=[strategy])
        try:
            train_step(worker, planner.plan([3, 4], targets), partial(_given, [sound[0], last]))
        except HydraulisError as error:
            codes.append(error.code)
    # The ranks are still in step with each other.
    train_step(
        worker,
        Planner(made_up_profile(CAPS), Cluster(2, 8), strategies=["2x<1>"]).plan([3, 4], [2, 3]),
        sound.__getitem__,
    )
    return codes


def _given(sequences: Sequence[SequenceTokens | None], sequence: int) -> SequenceTokens:
    tokens = sequences[sequence]
    if tokens is None:
        message = "the file is gone"
        raise HydraulisError(message, code="sequence_unreadable")
    return tokens
