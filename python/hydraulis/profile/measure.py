"""Measures a cost profile on the ranks of a run, while all ranks are busy.

For each scheme, as many replicas as fit run side by side. Each stage computes the micro-batches that
determine the coefficients best, in passes that repeat until the times are precise or the time limit is
reached. The time of a stage is that of its slowest rank, in the median over replicas and passes. On the CPU
it is the CPU time of the thread, which does not depend on other processes on the core. On CUDA it is the time
of the device.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from hydraulis._core import Cluster, CostProfile, Planner, Scheme, micro_batches_to_measure
from hydraulis.config.kinds import ContextKind, MemoryRule
from hydraulis.errors import InvalidInputError
from hydraulis.parallel.context.context_parallel import check_context_degree
from hydraulis.planner.model_shape import build_model_shape
from hydraulis.planner.profile_document import (
    ModelMemory,
    SchemeMemory,
    SchemeTimes,
    Workload,
    measured_document,
)
from hydraulis.profile.bench import SchemeBench
from hydraulis.profile.fit import fit_observations
from hydraulis.profile.host_memory import host_memory
from hydraulis.profile.memory import model_memory, sample_tokens, scheme_memory
from hydraulis.profile.observations import Observation, Timing
from hydraulis.profile.progress import MeasurementProgress, Progress
from hydraulis.profile.record import MeasurementRecord, Mixes, conditions_of
from hydraulis.runtime.ranks import host
from hydraulis.runtime.ranks.device import device_name
from hydraulis.runtime.ranks.rank_zero import from_rank_zero, on_rank_zero
from hydraulis.runtime.worker import Worker

# Micro-batches of each scheme: five more than the coefficients, so that the error can be estimated. On CUDA
# about half of them may take the least time.
NUM_MIXES_ON = {"cpu": 8, "cuda": 12}

# The first phase, whose duration is not known in advance.
WARMING_UP = "counting memory and warming up"

# Rounds of at most the time limit, while the times do not follow the cost model; all rounds count.
MOST_ROUNDS = 3

# Timings of one rank in one pass, by the scheme's text and the index of the micro-batch.
Pass = dict[tuple[str, int], Timing]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementLimits:
    """Limits of a measurement's time, memory and micro-batches.

    Attributes:
        context: Kind of context parallelism to measure, for schemes with context ranks.
        memory_bytes: Memory of a rank.
        longest: Tokens of the longest sequence of the run.
        micro_batch_tokens: Tokens of the largest possible micro-batch, those of a global batch.
        seconds: Time limit; no new pass starts after it. One pass always completes, and the limit is renewed
            at most twice while the times do not follow the cost model.
        memory: Memory rule of the plans; the largest micro-batch under this rule is timed.
        precision: Sufficient relative standard error of each micro-batch's median time; a scheme with this
            precision is left out of further passes.
        file: File of observations on rank 0, from which the measurement continues; None without a file.
        host_memory_bytes: Host memory of a rank for layers that offload; None for its part of the node's.
    """

    context: ContextKind
    memory_bytes: int
    longest: int
    micro_batch_tokens: int
    seconds: float
    memory: MemoryRule = "per_micro_batch"
    precision: float = 0.01
    file: Path | None = None
    host_memory_bytes: int | None = None


def announcement(num_schemes: int, device: torch.device, seconds: float) -> str:
    """Describe a measurement and its duration before it starts."""
    schemes = "1 scheme" if num_schemes == 1 else f"{num_schemes} schemes"
    most = num_schemes * NUM_MIXES_ON[device.type]
    return (
        f"measuring {schemes}: up to {most} micro-batches, each timed at least once, for "
        f"{seconds:g} s or until each is timed; the remaining time is shown"
    )


def measure_profile(
    worker: Worker,
    schemes: Sequence[Scheme],
    limits: MeasurementLimits,
    progress: Progress,
    is_stopped: Callable[[], bool],
    check: Callable[[CostProfile], None] = lambda _: None,
) -> CostProfile | None:
    """Measure time and memory of each scheme. Collective: every rank calls it.

    Args:
        worker: Worker of this rank; the measurement overwrites its local shard.
        schemes: Schemes to measure, none wider than the run's ranks.
        limits: Limits of time, memory and micro-batches.
        progress: Callback on every rank that receives the completed share, by the rank's own clock.
        is_stopped: Collective function that returns whether to stop, called between micro-batches.
        check: Function that raises if the profile does not fit the run, called on every rank before the long
            part with a profile of measured memory and placeholder times.

    Returns:
        The profile, equal on every rank; None if the measurement was stopped.

    Raises:
        InvalidInputError: The model does not fit a scheme's context degree (code `scheme_model_mismatch`), or
            the times do not follow the cost model (code `fit_unexplained`; see `fit_costs`).
        InfeasibleError: A scheme leaves no memory for a single token (code `scheme_too_large`).
    """
    contexts = {scheme: limits.context if scheme.cp > 1 else None for scheme in schemes}
    for scheme, context in contexts.items():
        check_context_degree(worker.parameters.config, scheme, context)
    benches = [SchemeBench(worker, scheme, context) for scheme, context in contexts.items()]
    workload = _workload(worker, limits.context)
    model, memory = _measured_memory(worker, benches, limits, workload)
    untimed = _untimed(model, memory, workload)
    check(untimed)
    mixes = _mixes(untimed, worker.cluster, limits, NUM_MIXES_ON[worker.device.type])
    record = MeasurementRecord(mixes, limits.precision)
    if limits.file is not None:
        on_rank_zero(partial(record.open, limits.file, conditions_of(workload, dist.get_world_size())))

    def fitted_profile() -> str:
        times = fit_observations(record.mixes, record.observations)
        return measured_document(model, memory, times, workload).to_json()

    rounds_left = MOST_ROUNDS
    while _measure(benches, record, limits.seconds, progress, is_stopped):
        rounds_left -= 1
        try:
            return CostProfile.from_json(from_rank_zero(fitted_profile))
        except InvalidInputError as error:
            # Other processes disturbed the ranks; the medians of more passes may follow the cost model.
            if error.code != "fit_unexplained" or not rounds_left:
                raise
    return None


def _measured_memory(
    worker: Worker, benches: Sequence[SchemeBench], limits: MeasurementLimits, workload: Workload
) -> tuple[ModelMemory, dict[Scheme, SchemeMemory]]:
    """Measure the bytes of all schemes, and those of none. Collective.

    On CUDA the sizes of the micro-batches follow from a first measurement of small ones.
    """
    memory = {bench.scheme: scheme_memory(worker, bench) for bench in benches}
    model = model_memory(worker, limits.memory_bytes)
    if worker.device.type == "cuda":
        first, most = _untimed(model, memory, workload), limits.micro_batch_tokens
        for bench in benches:
            tokens = sample_tokens(first.cap_tokens(bench.scheme, worker.cluster), most)
            memory[bench.scheme] = scheme_memory(worker, bench, tokens)
        model = model_memory(worker, limits.memory_bytes)
    return replace(model, **host_memory(worker, limits.host_memory_bytes)), memory


def _untimed(model: ModelMemory, memory: Mapping[Scheme, SchemeMemory], workload: Workload) -> CostProfile:
    """Return a profile with placeholder times, for the token caps."""
    return measured_document(model, memory, {scheme: _placeholder(scheme) for scheme in memory}, workload)


def _workload(worker: Worker, context: ContextKind) -> Workload:
    return Workload(
        model=build_model_shape(worker.parameters.config),
        split=worker.parameters.table.split,
        dtype=str(worker.local_shard.parameter.dtype).removeprefix("torch."),
        context=context,
        gpus_per_node=worker.cluster.gpus_per_node,
        attention=worker.kernel.name,
        compiled=bool(worker.train.compile),
        float8=worker.train.float8,
        symmetric_memory=worker.train.symmetric_memory,
        sharding=worker.train.sharding,
        device=device_name(worker.device),
        clock="time of the device" if worker.device.type == "cuda" else "CPU time",
        torch=torch.__version__,
    )


def _mixes(
    untimed: CostProfile, cluster: Cluster, limits: MeasurementLimits, number: int
) -> dict[Scheme, list[list[int]]]:
    """Choose `number` micro-batches of each scheme, up to its largest possible one."""
    mixes = {}
    for scheme in map(Scheme, untimed.schemes):
        planner = Planner(untimed, cluster, strategies=[f"1x{scheme}"], memory=limits.memory)
        tokens = min(planner.longest_admitted, limits.micro_batch_tokens)
        mixes[scheme] = micro_batches_to_measure(min(tokens, limits.longest), tokens, number)
    return mixes


def _placeholder(scheme: Scheme) -> SchemeTimes:
    """Return coefficients for a profile whose token caps are needed before its times."""
    return SchemeTimes(
        quadratic_ms_per_token2=0.0,
        linear_ms_per_token=1.0,
        fixed_ms=0.0,
        forward_share=0.5,
        stage_multipliers=[1.0] * scheme.pp,
    )


def _measure(
    benches: Sequence[SchemeBench],
    record: MeasurementRecord,
    seconds: float,
    progress: Progress,
    is_stopped: Callable[[], bool],
) -> bool:
    """Time the micro-batches of every scheme in passes; return False if stopped. Collective.

    Later passes leave out schemes whose times are precise.
    """
    for bench in benches:
        if is_stopped():
            return False
        # The first micro-batch of a scheme includes one-time costs, so it is not timed.
        bench.time(list(record.mixes[bench.scheme][0]))
    progress(0.0)
    completion = MeasurementProgress(progress, time.perf_counter(), seconds, record.mixes)
    share, num_passes = 0.0, 0
    while share < 1.0:
        imprecise = from_rank_zero(record.imprecise_schemes)
        measured = [bench for bench in benches if str(bench.scheme) in imprecise]
        timings, is_complete = _run_pass(measured, record.mixes, completion, is_stopped)
        # Rank 0 alone records a pass.
        gathered = host.gather_objects(timings) or []
        num_passes += 1
        share = from_rank_zero(partial(_record_pass, record, measured, gathered, completion, num_passes))
        if not is_complete:
            return False
        progress(share)
    return True


def _run_pass(
    benches: Sequence[SchemeBench],
    mixes: Mixes,
    completion: MeasurementProgress,
    is_stopped: Callable[[], bool],
) -> tuple[Pass, bool]:
    """Time every micro-batch once; return the timings so far, and False if stopped."""
    timings: Pass = {}
    for bench in benches:
        bench.initialize_parameters()
        for index, lengths in enumerate(mixes[bench.scheme]):
            if is_stopped():
                return timings, False
            timing = bench.time(list(lengths))
            if timing is not None:
                timings[str(bench.scheme), index] = timing
            completion.timed(bench.scheme, lengths)
    return timings, True


def _record_pass(
    record: MeasurementRecord,
    benches: Sequence[SchemeBench],
    gathered: Sequence[Pass],
    completion: MeasurementProgress,
    num_passes: int,
) -> float:
    """Record a pass and return the completed share: 1 if another pass takes too long or is unnecessary."""
    for bench in benches:
        scheme = bench.scheme
        for index, lengths in enumerate(record.mixes[scheme]):
            # A stopped pass has timed only some micro-batches.
            if any((str(scheme), index) in timings for timings in gathered):
                record.add(replica_observations(gathered, bench, lengths, index))
    next_share = completion.time_share() * (num_passes + 1) / num_passes
    is_last = next_share > 1.0 or not record.imprecise_schemes()
    return 1.0 if is_last and record.is_complete() else completion.completed_share()


def replica_observations(
    gathered: Sequence[Pass], bench: SchemeBench, lengths: Sequence[int], index: int
) -> list[Observation]:
    """Combine the ranks' timings of one micro-batch into an observation per replica.

    The timing of a stage is that of its slowest rank.

    Args:
        gathered: Timings of one pass, by rank.
        bench: Bench of the scheme.
        lengths: Lengths of the sequences in tokens.
        index: Index of the micro-batch.
    """
    name, stage_ranks = str(bench.scheme), bench.scheme.tp * bench.scheme.cp
    observations = []
    for ranks in bench.replicas:
        timings = [gathered[rank][name, index] for rank in ranks]
        starts = range(0, len(ranks), stage_ranks)
        stages = [max(timings[start : start + stage_ranks], key=sum) for start in starts]
        observations.append(Observation(name, tuple(lengths), tuple(stages)))
    return observations
