"""What the ranks of profile/test_measure.py do; not beside it, as `profile` is a standard module too."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import pytest
import torch

from hydraulis import Cluster, Planner, Scheme
from hydraulis.config.kinds import CheckpointingKind, ContextKind
from hydraulis.errors import HydraulisError, InvalidInputError
from hydraulis.profile import bench as bench_module
from hydraulis.profile import measure as measure_module
from hydraulis.profile.bench import SchemeBench
from hydraulis.profile.fitted_times import fitted_times
from hydraulis.profile.links import LinkMeasurement, measure_links
from hydraulis.profile.measure import MeasurementLimits, measure_profile
from hydraulis.profile.memory import activation_bytes
from hydraulis.profile.observations import num_kept
from hydraulis.runtime.loop import planned_bytes
from hydraulis.runtime.pipeline.stage import Stage
from hydraulis.runtime.worker import Worker
from runtime.tiny import make_worker
from small_model import small_config

SCHEMES = ("<1>", "<1,full>", "<tp2>", "<cp2>", "<pp3>")
MEMORY = 4 << 20
CONTEXTS: tuple[ContextKind, ...] = ("ulysses", "ring")
PLANNED = ("3x<1>", "1x<tp2>", "1x<pp2>", "1x<pp3>", "1x<cp2>")
TIED = ("1x<pp2>",)
ON_NODES = ("3x<1>", "1x<tp2>")
LENGTHS = (150, 120, 120, 90, 40, 40, 40, 7)


class LongMicroBatches(NamedTuple):
    """A plan by the exact rule.

    Attributes:
        longest: tokens of a micro-batch, in caps.
        measured: of the longest that was timed, in tokens of that one.
        num_empty: micro-batches without sequences.
        memory: what ranks were to hold, and held; on rank 0.
    """

    longest: float
    measured: float
    num_empty: int
    memory: list[tuple[int, int]]


class Report(NamedTuple):
    """What one rank saw of a measurement."""

    profile: str
    resumed: str
    fits: list[int]
    links: list[LinkMeasurement]
    shares: list[float]
    filled: bool
    refused: tuple[str, str, str]
    kept: list[float]
    split: list[list[int]]
    memory: dict[str, list[tuple[int, int]]]
    tied_memory: dict[str, list[tuple[int, int]]]
    nodes_memory: dict[str, list[tuple[int, int]]]
    long: LongMicroBatches


def limits(
    memory_bytes: int, seconds: float, file: Path | None = None, precision: float = 1e-9
) -> MeasurementLimits:
    return MeasurementLimits(
        context="ring",
        memory_bytes=memory_bytes,
        longest=1024,
        micro_batch_tokens=2048,
        seconds=seconds,
        precision=precision,
        file=file,
    )


def measure(file: Path) -> Report:
    """Measure; go on from the file; and with too little memory for any token."""
    # Tokens of the measurement are bytes.
    config = small_config(vocab_size=256, initializer_range=0.1)
    worker = make_worker([f"1x{scheme}" for scheme in SCHEMES], config=config, dtype=torch.float32)
    schemes = [Scheme(text) for text in SCHEMES]
    shares: list[float] = []
    # Three timings of each are enough for this precision, and those of the file count.
    known = limits(MEMORY, 600.0, file, precision=1e9)
    profile = measure_profile(worker, schemes, known, shares.append, lambda: False)
    assert profile is not None
    filled = bool(worker.buffers.parameter.count_nonzero() > 0)
    resumed = measure_profile(worker, schemes, known, lambda _: None, lambda: False)
    assert resumed is not None
    fits = [fits_of(worker, schemes, known, refusals) for refusals in (2, 3)]
    links = measure_links(worker.groups, worker.device)
    refused = ("", "", "")
    try:
        measure_profile(worker, schemes, limits(MEMORY // 8, 1.0), lambda _: None, lambda: False)
    except HydraulisError as error:
        refused = (type(error).__name__, error.code, str(error))
    kept = [kept_per_token(Scheme("<tp2>").under(kind)) for kind in get_args(CheckpointingKind)]
    return Report(
        profile.to_json(),
        resumed.to_json(),
        fits,
        links,
        shares,
        filled,
        refused,
        kept,
        [kept_of_split(context) for context in CONTEXTS],
        held_of_plans(PLANNED),
        held_of_plans(TIED, tie_word_embeddings=True),
        held_on_nodes(ON_NODES),
        long_micro_batches("<pp2>"),
    )


def stop_measuring(file: Path, times: int, schemes: Sequence[str]) -> tuple[bool, int]:
    """Measure until it has asked so often whether to stop; tell whether it did, and how much is kept."""
    config = small_config(vocab_size=256, initializer_range=0.1)
    worker = make_worker([f"1x{scheme}" for scheme in schemes], config=config, dtype=torch.float32)
    stop, endless = StopAfter(times), limits(MEMORY, 600.0, file)
    measured = [Scheme(text) for text in schemes]
    profile = measure_profile(worker, measured, endless, lambda _: None, stop.reached)
    return profile is None, num_kept(file)


def fits_of(worker: Worker, schemes: Sequence[Scheme], known: MeasurementLimits, refusals: int) -> int:
    """Measure while so many fits are refused; give how many there were, below 0 if the last was, too."""
    fit, number = fitted_times, 0

    def fit_or_refuse(*arguments: Any) -> Any:
        nonlocal number
        number += 1
        if number <= refusals:
            message = "it follows no law"
            raise InvalidInputError(message, code="fit_unexplained")
        return fit(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure_module, "fitted_times", fit_or_refuse)
        try:
            measure_profile(worker, schemes, known, lambda _: None, lambda: False)
        except InvalidInputError:
            return -number
    return number


def kept_per_token(scheme: Scheme) -> float:
    """Count what a rank of a replica keeps for a token; 0 on one that is left over."""
    return SchemeBench(make_worker([f"1x{scheme}"]), scheme, None).kept_bytes(64).per_token


def forwards_counted() -> dict[str, int]:
    """Give how often a forward runs to count what is kept, by the kind of checkpointing."""
    counted: list[Stage] = []
    count = activation_bytes

    def remember(stage: Stage, *arguments: Any) -> int:
        counted.append(stage)
        return count(stage, *arguments)

    numbers = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench_module, "activation_bytes", remember)
        for kind in get_args(CheckpointingKind):
            kept_per_token(Scheme("<1>").under(kind))
            numbers[kind] = len(counted)
            counted.clear()
    return numbers


def kept_of_split(context: ContextKind) -> list[int]:
    """Count what a context rank keeps of 64 tokens in 1 to 8 sequences; nothing on the rank left over."""
    worker = make_worker(["1x<cp2>"])
    bench = SchemeBench(worker, Scheme("<cp2>"), context)
    if bench._stage is None:
        return [0] * 4
    return [bench._kept_by(bench._stage, [64 // number] * number) for number in (1, 2, 4, 8)]


def held_on_nodes(strategies: Sequence[str]) -> dict[str, list[tuple[int, int]]]:
    """Do as `held_of_plans`, as if each rank were on a node of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_WORLD_SIZE", "1")
        return held_of_plans(strategies, ranks_per_node=1)


def held_of_plans(
    strategies: Sequence[str], ranks_per_node: int = 3, **changes: Any
) -> dict[str, list[tuple[int, int]]]:
    """Measure a profile, carry a plan of each strategy out: what ranks were to hold, and held; on rank 0."""
    worker = make_worker(strategies, config=small_config(vocab_size=256, **changes), dtype=torch.float32)
    schemes = [Scheme(text.partition("x")[2]) for text in strategies]
    known = limits(MEMORY, 600.0, precision=1e9)
    profile = measure_profile(worker, schemes, known, lambda _: None, lambda: False)
    assert profile is not None
    found = {}
    for strategy in strategies:
        cluster = Cluster(gpus=3, gpus_per_node=ranks_per_node)
        planner = Planner(profile, cluster, strategies=[strategy])
        plan = planner.plan(LENGTHS, [length - 1 for length in LENGTHS])
        held = worker.accumulate(plan, zeros).peak_bytes
        # The same again holds no more, and is not counted.
        assert not any(worker.accumulate(plan, zeros).peak_bytes)
        pairs = zip(planned_bytes(planner, plan), held, strict=False)
        found[strategy] = [(planned, counted) for planned, counted in pairs if planned and counted]
    return found


def long_micro_batches(text: str) -> LongMicroBatches:
    """Measure a pipeline, and carry out a plan of sequences that it holds one at a time."""
    scheme, cluster = Scheme(text), Cluster(gpus=3, gpus_per_node=3)
    worker = make_worker([f"1x{text}"], config=small_config(vocab_size=256), dtype=torch.float32)
    exact = replace(limits(MEMORY, 600.0, precision=1e9), memory="exact")
    profile = measure_profile(worker, [scheme], exact, lambda _: None, lambda: False)
    assert profile is not None
    planner = Planner(profile, cluster, strategies=[f"1x{text}"], memory="exact")
    longest, lengths = planner.longest_admitted, [planner.longest_admitted - less for less in (0, 9, 40)]
    plan = planner.plan(lengths, [length - 1 for length in lengths])
    assert planner.check(plan, lengths, [length - 1 for length in lengths]) == []
    held = worker.accumulate(plan, lambda sequence: np.zeros(lengths[sequence], dtype=np.uint8)).peak_bytes
    pairs = zip(planned_bytes(planner, plan), held, strict=False)
    (entry,) = json.loads(profile.to_json())["schemes"]
    return LongMicroBatches(
        longest / profile.cap_tokens(scheme, cluster),
        entry["fit"]["range"]["longest_tokens"] / longest,
        sum(not sequences for sequences in plan.replicas[0].micro_batches),
        [(planned, counted) for planned, counted in pairs if planned and counted],
    )


def zeros(sequence: int) -> npt.NDArray[np.uint8]:
    """Give the tokens of a sequence."""
    return np.zeros(LENGTHS[sequence], dtype=np.uint8)


class StopAfter:
    """Says stop when it has been asked so often."""

    def __init__(self, times: int) -> None:
        self._left = times

    def reached(self) -> bool:
        self._left -= 1
        return self._left < 0
