"""Functions that the ranks of profile/test_measure.py run.

They are not in tests/profile, because `profile` is a standard module.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.distributed as dist

from hydraulis import Cluster, CostProfile, Scheme
from hydraulis.config.kinds import CheckpointingKind, ContextKind, MemoryRule, ShardingKind
from hydraulis.config.planner import PlannerConfig
from hydraulis.errors import HydraulisError, InvalidInputError
from hydraulis.planner.profile_document import LinkMeasurement
from hydraulis.profile import bench as bench_module
from hydraulis.profile import measure as measure_module
from hydraulis.profile.activations import activation_bytes
from hydraulis.profile.bench import SchemeBench
from hydraulis.profile.fit import fit_observations
from hydraulis.profile.links import measure_links
from hydraulis.profile.measure import MeasurementLimits, measure_profile
from hydraulis.profile.record import count_observations
from hydraulis.runtime.iteration import planned_bytes
from hydraulis.runtime.pipeline.stage import Stage
from hydraulis.runtime.planning.run_planner import RunPlanner
from hydraulis.runtime.step import train_step
from hydraulis.runtime.worker import Worker
from runtime.tiny import make_worker
from small_model import small_config

SCHEMES = ("<1>", "<1,full>", "<tp2>", "<cp2>", "<pp2>", "<pp3>")
MEMORY = 4 << 20
CONTEXTS: tuple[ContextKind, ...] = ("ulysses", "ring")
PLANNED = ("3x<1>", "1x<tp2>", "1x<pp2>", "1x<pp3>", "1x<cp2>")
TIED = ("1x<pp2>",)
OFFLOADED = (
    "3x<1,offload>",
    "1x<tp2,offload:3/6>",
    "1x<pp2,offload>",
    "1x<pp2,offload:4/6>",
    "1x<pp3,offload>",
)
ON_NODES = ("3x<1>", "1x<tp2>")
LENGTHS = (150, 120, 120, 90, 40, 40, 40, 7)


class LongMicroBatches(NamedTuple):
    """A plan under the in-flight memory rule.

    Attributes:
        longest: Tokens of the longest micro-batch, in token caps.
        measured: Tokens of the longest timed micro-batch, in those of the longest.
        num_empty: Number of micro-batches without sequences.
        memory: Predicted and measured bytes of each rank, on rank 0.
    """

    longest: float
    measured: float
    num_empty: int
    memory: list[tuple[int, int]]


class Report(NamedTuple):
    """The results of a measurement on one rank."""

    profile: str
    resumed: str
    fits: list[int]
    links: list[LinkMeasurement]
    kept_groups: int
    shares: list[float]
    filled: bool
    refused: tuple[str, str, str]
    kept: list[float]
    split: list[list[int]]
    memory: dict[str, list[tuple[int, int]]]
    tied_memory: dict[str, list[tuple[int, int]]]
    nodes_memory: dict[str, list[tuple[int, int]]]
    offloaded_memory: dict[str, list[tuple[int, int]]]
    long: LongMicroBatches


def limits(
    memory_bytes: int, seconds: float, file: Path | None = None, precision: float = 1e-9
) -> MeasurementLimits:
    return MeasurementLimits(
        context="ring",
        memory_bytes=memory_bytes,
        longest=512,
        micro_batch_tokens=1024,
        seconds=seconds,
        precision=precision,
        file=file,
    )


def measure_frozen_stage() -> list[float]:
    """Give the bytes per token of two stages, the first of which has no trained parameter."""
    config = small_config(vocab_size=256, num_hidden_layers=4)
    frozen = ("model.embed_tokens.*", "model.layers.[012].*")
    worker = make_worker(["1x<pp2>"], config=config, dtype=torch.float32, frozen=frozen)
    known = limits(MEMORY, 600.0, precision=1e9)
    profile = measure_profile(worker, [Scheme("<pp2>")], known, lambda _: None, lambda: False)
    assert profile is not None
    (entry,) = json.loads(profile.to_json())["schemes"]
    found: list[float] = entry["activation_bytes_per_token"]
    return found


def measure(file: Path) -> Report:
    """Measure, continue from the file, and measure with too little memory for a token."""
    # Tokens of the measurement are bytes.
    config = small_config(vocab_size=256, initializer_range=0.1)
    worker = make_worker([f"1x{scheme}" for scheme in SCHEMES], config=config, dtype=torch.float32)
    schemes = [Scheme(text) for text in SCHEMES]
    shares: list[float] = []
    # Three timings of each micro-batch suffice for this precision, including those of the file.
    known = limits(MEMORY, 600.0, file, precision=1e9)
    profile = measure_profile(worker, schemes, known, shares.append, lambda: False)
    assert profile is not None
    filled = bool(worker.local_shard.parameter.count_nonzero() > 0)
    resumed = measure_profile(worker, schemes, known, lambda _: None, lambda: False)
    assert resumed is not None
    fits = [fits_of(worker, schemes[:1], known, refusals) for refusals in (2, 3)]
    before = len(dist.distributed_c10d._world.pg_map)
    links = measure_links(worker.groups, worker.device)
    kept_groups = len(dist.distributed_c10d._world.pg_map) - before
    refused = ("", "", "")
    try:
        measure_profile(worker, schemes, limits(MEMORY // 8, 1.0), lambda _: None, lambda: False)
    except HydraulisError as error:
        refused = (type(error).__name__, error.code, str(error))
    kept = [
        saved_bytes_per_token(Scheme("<tp2>").with_checkpointing(kind))
        for kind in get_args(CheckpointingKind)
    ]
    return Report(
        profile.to_json(),
        resumed.to_json(),
        fits,
        links,
        kept_groups,
        shares,
        filled,
        refused,
        kept,
        [saved_bytes_of_split(context) for context in CONTEXTS],
        planned_and_measured_memory(worker, profile, PLANNED),
        memory_of_plans(TIED, tie_word_embeddings=True),
        memory_on_nodes(ON_NODES),
        memory_of_plans(OFFLOADED, num_hidden_layers=6),
        long_micro_batches("<pp2>"),
    )


def stop_measuring(file: Path, times: int, schemes: Sequence[str]) -> tuple[bool, int]:
    """Measure until a number of stop checks; return whether it stopped, and the number of observations."""
    config = small_config(vocab_size=256, initializer_range=0.1)
    worker = make_worker([f"1x{scheme}" for scheme in schemes], config=config, dtype=torch.float32)
    stop, endless = StopAfter(times), limits(MEMORY, 600.0, file)
    measured = [Scheme(text) for text in schemes]
    profile = measure_profile(worker, measured, endless, lambda _: None, stop.reached)
    return profile is None, count_observations(file)


def fits_of(worker: Worker, schemes: Sequence[Scheme], known: MeasurementLimits, refusals: int) -> int:
    """Measure with refused fits; return the number of fits, negative if the last one was refused."""
    fit, number = fit_observations, 0

    def fit_or_refuse(*arguments: Any) -> Any:
        nonlocal number
        number += 1
        if number <= refusals:
            message = "refused by the test"
            raise InvalidInputError(message, code="fit_unexplained")
        return fit(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure_module, "fit_observations", fit_or_refuse)
        try:
            measure_profile(worker, schemes, known, lambda _: None, lambda: False)
        except InvalidInputError:
            return -number
    return number


def saved_bytes_per_token(scheme: Scheme) -> float:
    """Return a rank's saved bytes per token; 0 outside all replicas."""
    return SchemeBench(make_worker([f"1x{scheme}"]), scheme, None).saved_bytes(64).per_token


def forwards_counted() -> dict[str, int]:
    """Return the number of counted forwards, by kind of checkpointing."""
    counted: list[Stage] = []
    count = activation_bytes

    def remember(stage: Stage, *arguments: Any) -> int:
        counted.append(stage)
        return count(stage, *arguments)

    numbers = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench_module, "activation_bytes", remember)
        for kind in get_args(CheckpointingKind):
            saved_bytes_per_token(Scheme("<1>").with_checkpointing(kind))
            numbers[kind] = len(counted)
            counted.clear()
    return numbers


def saved_bytes_of_split(context: ContextKind) -> list[int]:
    """Return a context rank's saved bytes of 64 tokens in 1 to 8 sequences; 0 outside all replicas."""
    worker = make_worker(["1x<cp2>"])
    bench = SchemeBench(worker, Scheme("<cp2>"), context)
    if bench._stage is None:
        return [0] * 4
    return [bench._micro_batch_bytes(bench._stage, [64 // number] * number) for number in (1, 2, 4, 8)]


def memory_on_nodes(strategies: Sequence[str]) -> dict[str, list[tuple[int, int]]]:
    """Run `memory_of_plans` with each rank on its own node."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_WORLD_SIZE", "1")
        return memory_of_plans(strategies, ranks_per_node=1)


def memory_of_plans(
    strategies: Sequence[str], ranks_per_node: int = 3, sharding: ShardingKind = "none", **changes: Any
) -> dict[str, list[tuple[int, int]]]:
    """Measure a profile, and return what `planned_and_measured_memory` returns."""
    config = small_config(vocab_size=256, **changes)
    worker = make_worker(strategies, config=config, dtype=torch.float32, sharding=sharding)
    schemes = [Scheme(text.partition("x")[2]) for text in strategies]
    known = limits(MEMORY, 600.0, precision=1e9)
    profile = measure_profile(worker, schemes, known, lambda _: None, lambda: False)
    assert profile is not None
    assert profile.sharding == sharding
    return planned_and_measured_memory(worker, profile, strategies, ranks_per_node)


def planned_and_measured_memory(
    worker: Worker, profile: CostProfile, strategies: Sequence[str], ranks_per_node: int = 3
) -> dict[str, list[tuple[int, int]]]:
    """Run a plan of each strategy, and return predicted and measured bytes of each rank, on rank 0."""
    found = {}
    for strategy in strategies:
        cluster = Cluster(gpus=3, gpus_per_node=ranks_per_node)
        planner = run_planner(profile, cluster, strategy)
        plan = planner.plan(LENGTHS, [length - 1 for length in LENGTHS])
        held = train_step(worker, plan, zeros).measured.peak_bytes
        # Memory is counted in the first step only.
        assert not any(train_step(worker, plan, zeros).measured.peak_bytes)
        pairs = zip(planned_bytes(planner, plan), held, strict=False)
        found[strategy] = [(planned, counted) for planned, counted in pairs if planned and counted]
    return found


def run_planner(
    profile: CostProfile, cluster: Cluster, strategy: str, memory: MemoryRule = "per_micro_batch"
) -> RunPlanner:
    return RunPlanner(PlannerConfig(strategies=(strategy,), memory=memory), profile, cluster)


def long_micro_batches(text: str) -> LongMicroBatches:
    """Measure a pipeline, and run a plan of sequences that fit memory one at a time."""
    scheme, cluster = Scheme(text), Cluster(gpus=3, gpus_per_node=3)
    worker = make_worker([f"1x{text}"], config=small_config(vocab_size=256), dtype=torch.float32)
    usual = limits(MEMORY, 600.0, precision=1e9)
    exact = replace(usual, memory="in_flight", longest=2048, micro_batch_tokens=2048)
    profile = measure_profile(worker, [scheme], exact, lambda _: None, lambda: False)
    assert profile is not None
    planner = run_planner(profile, cluster, f"1x{text}", "in_flight")
    longest, lengths = planner.longest_admitted, [planner.longest_admitted - less for less in (0, 9, 40)]
    plan = planner.plan(lengths, [length - 1 for length in lengths])
    planner.check(plan, lengths, [length - 1 for length in lengths])
    held = train_step(
        worker, plan, lambda sequence: np.zeros(lengths[sequence], dtype=np.uint8)
    ).measured.peak_bytes
    pairs = zip(planned_bytes(planner, plan), held, strict=False)
    (entry,) = json.loads(profile.to_json())["schemes"]
    return LongMicroBatches(
        longest / profile.cap_tokens(scheme, cluster),
        entry["fit"]["range"]["longest_tokens"] / longest,
        sum(not sequences for sequences in plan.replicas[0].micro_batches),
        [(planned, counted) for planned, counted in pairs if planned and counted],
    )


def zeros(sequence: int) -> npt.NDArray[np.uint8]:
    """Return the tokens of a sequence."""
    return np.zeros(LENGTHS[sequence], dtype=np.uint8)


class StopAfter:
    """Stops after a number of checks."""

    def __init__(self, times: int) -> None:
        self._left = times

    def reached(self) -> bool:
        self._left -= 1
        return self._left < 0
