"""A cost profile of the ranks at hand, while all of them are busy.

For each scheme as many replicas as fit run side by side, every stage on the micro-batches that tell most
about the coefficients, pass after pass until the times are known well enough or the time is up. A time is
that of the rank's clock, the slowest rank's for each stage, the median over replicas and passes: on the CPU
it is CPU time of the thread, and holds although ranks share cores; on CUDA it is the device's.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from hydraulis._core import Cluster, CostProfile, Planner, Scheme, micro_batches_to_measure
from hydraulis.config.kinds import ContextKind, MemoryRule
from hydraulis.errors import InvalidInputError
from hydraulis.parallel.context.context_parallel import check_context_degree
from hydraulis.planner.model_shape import build_model_shape
from hydraulis.profile.bench import SchemeBench
from hydraulis.profile.document import TimeMeasurement, Workload, cost_profile
from hydraulis.profile.fitted_times import fitted_times
from hydraulis.profile.measured_memory import model_memory, scheme_memory
from hydraulis.profile.measurement_progress import MeasurementProgress, Progress
from hydraulis.profile.measurement_record import MeasurementRecord, Mixes
from hydraulis.profile.observations import Conditions, Observation, Timing
from hydraulis.runtime.ranks.device import device_name
from hydraulis.runtime.ranks.rank_zero import from_rank_zero, on_rank_zero
from hydraulis.runtime.worker import Worker

# Micro-batches of each scheme: five more than there are coefficients, so that the error can be told.
NUM_MIXES = 8

# What is done first, for as long as that takes; its share of the whole is not known.
WARMING_UP = "counting memory and warming up"

# How often the time is granted, if times follow no law; those of the rounds before count.
MOST_ROUNDS = 3

# By scheme, as written, and by the number of the mix: what a rank measured in one pass.
Pass = dict[tuple[str, int], Timing]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementLimits:
    """What a measurement may take, and what it need not look at.

    Attributes:
        context: the kind of context parallelism to measure, for schemes that have any.
        memory_bytes: that a rank may use.
        memory: the rule by which plans will fit micro-batches into it; the largest that it admits is timed.
        longest: tokens of the longest sequence that the run will see.
        micro_batch_tokens: tokens of the largest micro-batch that it can make of a global batch.
        seconds: after which no new pass over the micro-batches is begun; one is always made, and the time is
            granted again, twice at most, while the times follow no law.
        precision: a scheme is measured no more once the relative standard error of each micro-batch's median
            time is at most this.
        file: of the observations, on rank 0; those that it holds count, and new ones are added.
    """

    context: ContextKind
    memory_bytes: int
    longest: int
    micro_batch_tokens: int
    seconds: float
    memory: MemoryRule = "cap"
    precision: float = 0.01
    file: Path | None = None


def what_it_takes(num_schemes: int, seconds: float) -> str:
    """Say, before it begins, what is measured and how long that takes."""
    schemes = "1 scheme costs" if num_schemes == 1 else f"{num_schemes} schemes cost"
    return (
        f"measuring what {schemes}: up to {num_schemes * NUM_MIXES} micro-batches, each timed at least once, "
        f"for {seconds:g} s or as long as that takes; how much is left is told on the way"
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
        worker: of this rank; its strategy buffers are overwritten.
        schemes: none wider than the ranks there are.
        limits: of memory, lengths and time.
        progress: told the share that is done, on every rank, by its own clock.
        is_stopped: asked between micro-batches, by every rank together; the same answer on all.
        check: given, on every rank, a profile whose memory is measured and whose times are not, before the
            long part begins; raises if that does not serve.

    Returns:
        The profile, the same on every rank; None if the measurement was stopped.

    Raises:
        InvalidInputError: the model does not admit a scheme's context degree (code `scheme_model_mismatch`),
            or times follow no law (code `fit_unexplained`; see `fit_costs`).
        InfeasibleError: a scheme leaves no memory for a single token (code `scheme_too_large`).
    """
    contexts = {scheme: limits.context if scheme.cp > 1 else None for scheme in schemes}
    for scheme, context in contexts.items():
        check_context_degree(worker.parameters.config, scheme, context)
    benches = [SchemeBench(worker, scheme, context) for scheme, context in contexts.items()]
    model = model_memory(worker, limits.memory_bytes)
    memory = {bench.scheme: scheme_memory(worker, bench) for bench in benches}
    workload = _workload(worker, limits.context)
    untimed = cost_profile(model, memory, {scheme: _untimed(scheme) for scheme in memory}, workload)
    check(untimed)
    record = MeasurementRecord(_mixes(untimed, worker.cluster, limits), limits.precision)
    if limits.file is not None:
        on_rank_zero(partial(record.open, limits.file, _conditions(workload)))

    def fitted() -> str:
        return cost_profile(
            model, memory, fitted_times(record.mixes, record.observations), workload
        ).to_json()

    rounds_left = MOST_ROUNDS
    while _measure(benches, record, limits.seconds, progress, is_stopped):
        rounds_left -= 1
        try:
            return CostProfile.from_json(from_rank_zero(fitted))
        except InvalidInputError as error:
            # Ranks were busy with something else: medians of more passes may follow the law.
            if error.code != "fit_unexplained" or not rounds_left:
                raise
    return None


def _workload(worker: Worker, context: ContextKind) -> Workload:
    return Workload(
        model=build_model_shape(worker.parameters.config),
        split=worker.parameters.table.split,
        dtype=str(worker.buffers.parameter.dtype).removeprefix("torch."),
        context=context,
        gpus_per_node=worker.cluster.gpus_per_node,
        attention=worker.kernel.name,
        device=device_name(worker.device),
        clock="time of the device" if worker.device.type == "cuda" else "CPU time",
    )


def _conditions(workload: Workload) -> Conditions:
    return Conditions(
        model=workload.model.to_json(),
        stage_layers=json.dumps(workload.split.stated),
        dtype=workload.dtype,
        context=workload.context,
        attention=workload.attention,
        device=workload.device,
        clock=workload.clock,
        ranks=dist.get_world_size(),
        torch=torch.__version__,
    )


def _mixes(
    untimed: CostProfile, cluster: Cluster, limits: MeasurementLimits
) -> dict[Scheme, list[list[int]]]:
    """Choose micro-batches for each scheme, up to the largest that it will be given."""
    mixes = {}
    for scheme in map(Scheme, untimed.schemes):
        planner = Planner(untimed, cluster, strategies=[f"1x{scheme}"], memory=limits.memory)
        tokens = min(planner.longest_admitted, limits.micro_batch_tokens)
        mixes[scheme] = micro_batches_to_measure(min(tokens, limits.longest), tokens, NUM_MIXES)
    return mixes


def _untimed(scheme: Scheme) -> TimeMeasurement:
    """Stand in for coefficients that caps do not depend on."""
    return TimeMeasurement(
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
    """Time the micro-batches of every scheme, pass after pass; tell whether it came to its end. Collective.

    A scheme that is known well enough is left out of the passes that follow.
    """
    for bench in benches:
        if is_stopped():
            return False
        # The first micro-batch of a scheme pays for what is made on first use.
        bench.time(list(record.mixes[bench.scheme][0]))
    progress(0.0)
    told = MeasurementProgress(progress, time.perf_counter(), seconds, record.mixes)
    share, num_passes = 0.0, 0
    while share < 1.0:
        unknown = json.loads(from_rank_zero(lambda: json.dumps(record.unknown())))
        measured = [bench for bench in benches if str(bench.scheme) in unknown]
        timings, is_whole = _pass(measured, record.mixes, told, is_stopped)
        gathered: list[Pass] = [{}] * dist.get_world_size()
        dist.gather_object(timings, gathered if dist.get_rank() == 0 else None)
        num_passes += 1
        share = float(from_rank_zero(partial(_recorded, record, measured, gathered, told, num_passes)))
        if not is_whole:
            return False
        progress(share)
    return True


def _pass(
    benches: Sequence[SchemeBench], mixes: Mixes, told: MeasurementProgress, is_stopped: Callable[[], bool]
) -> tuple[Pass, bool]:
    """Time every micro-batch once; tell whether that came to its end. What was timed before counts."""
    timings: Pass = {}
    for bench in benches:
        bench.fill()
        for index, lengths in enumerate(mixes[bench.scheme]):
            if is_stopped():
                return timings, False
            timing = bench.time(list(lengths))
            if timing is not None:
                timings[str(bench.scheme), index] = timing
            told.timed(bench.scheme, lengths)
    return timings, True


def _recorded(
    record: MeasurementRecord,
    benches: Sequence[SchemeBench],
    gathered: Sequence[Pass],
    told: MeasurementProgress,
    num_passes: int,
) -> str:
    """Record a pass, and give the share that is done: all, if another would be too long or help nothing."""
    for bench in benches:
        scheme = bench.scheme
        for index, lengths in enumerate(record.mixes[scheme]):
            # A pass that was stopped has timed some.
            if any((str(scheme), index) in timings for timings in gathered):
                record.add(observed(gathered, bench, lengths, index))
    share = told.share()
    is_done = share * (num_passes + 1) / num_passes > 1.0 or not record.unknown()
    return str(1.0 if is_done and record.is_complete() else told.done())


def observed(
    gathered: Sequence[Pass], bench: SchemeBench, lengths: Sequence[int], index: int
) -> list[Observation]:
    """Bring the ranks' timings of one micro-batch together: an observation for each replica of the scheme.

    A stage takes as long as its slowest rank.

    Args:
        gathered: one pass, by rank.
        bench: of the scheme.
        lengths: of the sequences.
        index: of the micro-batch.
    """
    name, block = str(bench.scheme), bench.scheme.tp * bench.scheme.cp
    observations = []
    for ranks in bench.replicas:
        timings = [gathered[rank][name, index] for rank in ranks]
        stages = [max(timings[start : start + block], key=sum) for start in range(0, len(ranks), block)]
        observations.append(Observation(name, tuple(lengths), tuple(stages)))
    return observations
