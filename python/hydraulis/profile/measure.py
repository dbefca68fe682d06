"""A cost profile of the ranks at hand, while all of them are busy.

For each scheme as many replicas as fit run side by side, every stage on micro-batches of several sizes and
mixes, pass after pass until the time is up. A time is CPU time of a rank's thread, the slowest rank's for
each stage, the median over replicas and passes: so it holds although ranks share cores.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from hydraulis._core import Cluster, CostProfile, Scheme, fit_cost
from hydraulis.config.checkpointing import CheckpointingKind
from hydraulis.config.context import ContextKind
from hydraulis.parallel.context.degree import check_context_degree
from hydraulis.profile.bench import SchemeBench, Timing
from hydraulis.profile.document import MemoryMeasurement, ModelMemory, TimeMeasurement, cost_profile
from hydraulis.runtime.rank_zero import from_rank_zero
from hydraulis.runtime.worker import Worker

# Activation bytes are linear in tokens, so two sizes tell: this one and twice it.
MEMORY_TOKENS = 512
# Master parameters, their gradients and two moments.
HOME_BUFFERS = 4
# Of frozen parameters the master alone.
FROZEN_HOME_BUFFERS = 1
# Gradients that come in: what is at home here of two buckets, from each holder, is at most two buckets.
STAGING_BUFFERS = 2

# The first pass may take longer than the budget: it is not done before its end.
LAST_SHARE = 0.99

Progress = Callable[[float], None]
# By scheme, as written, and by the number of the mix: what a rank measured in one pass.
Pass = dict[tuple[str, int], Timing]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementLimits:
    """What a measurement may take, and what it need not look at.

    Attributes:
        context: the kind of context parallelism to measure, for schemes that have any.
        memory_bytes: that a rank may use.
        longest: tokens of the longest sequence that the run will see.
        micro_batch_tokens: tokens of the largest micro-batch that it can make of a global batch.
        seconds: after which no new pass over the micro-batches is begun; one is always made.
    """

    context: ContextKind
    memory_bytes: int
    longest: int
    micro_batch_tokens: int
    seconds: float


def measure_profile(
    worker: Worker,
    schemes: Sequence[Scheme],
    limits: MeasurementLimits,
    progress: Progress,
    is_stopped: Callable[[], bool],
) -> CostProfile | None:
    """Measure time and memory of each scheme. Collective: every rank calls it.

    Args:
        worker: of this rank; its strategy buffers are overwritten.
        schemes: none wider than the ranks there are.
        limits: of memory, lengths and time.
        progress: told the share that is done, on every rank, by its own clock.
        is_stopped: asked between micro-batches, by every rank together; the same answer on all.

    Returns:
        The profile, the same on every rank; None if the measurement was stopped.

    Raises:
        InvalidInputError: the model does not admit a scheme's context degree (code `context_degree`).
        InfeasibleError: a scheme leaves no memory for a single token (code `scheme_too_large`).
    """
    contexts = {scheme: limits.context if scheme.cp > 1 else None for scheme in schemes}
    for scheme, context in contexts.items():
        check_context_degree(worker.parameters.config, scheme, context)
    benches = [SchemeBench(worker, scheme, context) for scheme, context in contexts.items()]
    model = _model_memory(worker, limits.memory_bytes)
    memory = {bench.scheme: _scheme_memory(worker, bench) for bench in benches}
    mixes = _mixes(model, memory, limits, worker.checkpointing)
    passes = _passes(benches, mixes, limits.seconds, progress, is_stopped)
    if not passes:
        return None
    gathered: list[list[Pass]] = [[]] * dist.get_world_size()
    dist.gather_object(passes, gathered if dist.get_rank() == 0 else None)

    def fitted() -> str:
        stage_times = {
            scheme: [_stage_times(gathered, scheme, index) for index in range(len(mixes[scheme]))]
            for scheme in schemes
        }
        times = {scheme: _fit(mixes[scheme], stage_times[scheme]) for scheme in schemes}
        forward_share = _forward_share(stage_times)
        return cost_profile(
            model, memory, times, forward_share, limits.context, worker.checkpointing
        ).to_json()

    return CostProfile.from_json(from_rank_zero(fitted))


def _model_memory(worker: Worker, memory_bytes: int) -> ModelMemory:
    staging = home = 0
    for share in worker.shares:
        elements: dict[int, int] = {}
        for parameter in share.parameters.table.parameters:
            bucket = parameter.blocks[0]
            elements[bucket] = elements.get(bucket, 0) + parameter.rows * parameter.row_elements
        staging += STAGING_BUFFERS * max(elements.values())
        home += (HOME_BUFFERS if share.parameters.trained else FROZEN_HOME_BUFFERS) * sum(elements.values())
    return ModelMemory(
        memory_bytes=memory_bytes,
        reserved_bytes=staging * worker.buffers.gradient.itemsize,
        home_bytes=home * worker.home.master.itemsize,
    )


def _scheme_memory(worker: Worker, bench: SchemeBench) -> MemoryMeasurement:
    kept = torch.tensor(bench.kept_bytes(MEMORY_TOKENS), dtype=torch.float64)
    dist.all_reduce(kept, op=dist.ReduceOp.MAX)
    per_token, constant = kept.tolist()
    return MemoryMeasurement(
        # The buffers are those of the largest stage of all schemes, whichever a rank is in.
        held_bytes=sum(part.parameter.nbytes + part.gradient.nbytes for part in worker.all_buffers)
        + math.ceil(constant),
        activation_bytes_per_token=per_token,
    )


def _mixes(
    model: ModelMemory,
    memory: dict[Scheme, MemoryMeasurement],
    limits: MeasurementLimits,
    checkpointing: CheckpointingKind,
) -> dict[Scheme, list[list[int]]]:
    """Choose micro-batches for each scheme: alone and packed, from a sixteenth to all that it will be given.

    Sequences of one length alone could not tell the fixed cost from the rest, and full packs of short ones
    are what training runs most.
    """
    times = {scheme: _unfitted(scheme) for scheme in memory}
    unfitted = cost_profile(model, memory, times, 0.5, limits.context, checkpointing)
    world = dist.get_world_size()
    mixes = {}
    for scheme in memory:
        cap = unfitted.cap_tokens(scheme, Cluster(gpus=world, gpus_per_node=world))
        mixes[scheme] = _mixes_up_to(min(cap, limits.micro_batch_tokens), min(cap, limits.longest))
    return mixes


def _mixes_up_to(tokens: int, longest: int) -> list[list[int]]:
    sixteenth, part = max(1, tokens // 16), max(1, longest // 16)
    return [
        [part],
        [4 * part],
        [8 * part],
        [longest],
        [min(4 * sixteenth, longest)] * 4,
        [min(sixteenth, longest)] * 16,
    ]


def _unfitted(scheme: Scheme) -> TimeMeasurement:
    """Stand in for coefficients that caps do not depend on."""
    return TimeMeasurement(
        quadratic_ms_per_token2=0.0,
        linear_ms_per_token=1.0,
        fixed_ms=0.0,
        stage_multipliers=[1.0] * scheme.pp,
    )


def _passes(
    benches: Sequence[SchemeBench],
    mixes: dict[Scheme, list[list[int]]],
    seconds: float,
    progress: Progress,
    is_stopped: Callable[[], bool],
) -> list[Pass]:
    """Measure every mix once per pass, for as many passes as the time allows; none if it is stopped."""
    for bench in benches:
        # The first micro-batch of a scheme pays for what is made on first use.
        bench.time(mixes[bench.scheme][0])
    progress(0.0)
    start = time.perf_counter()
    passes: list[Pass] = []
    share = 0.0
    while share < 1.0:
        timings: Pass = {}
        for bench in benches:
            bench.fill()
            for index, lengths in enumerate(mixes[bench.scheme]):
                if is_stopped():
                    return []
                timing = bench.time(lengths)
                if timing is not None:
                    timings[str(bench.scheme), index] = timing
            progress(min(LAST_SHARE, (time.perf_counter() - start) / seconds))
        passes.append(timings)
        share = _share_done(time.perf_counter() - start, len(passes), seconds)
        progress(share)
    return passes


def _share_done(elapsed: float, num_passes: int, seconds: float) -> float:
    """Agree on how much of the budget is used; all of it, once another pass would exceed it. Collective."""
    expected = elapsed * (num_passes + 1) / num_passes
    share = torch.tensor(1.0 if expected > seconds else elapsed / seconds, dtype=torch.float64)
    dist.broadcast(share, src=0)
    return share.item()


def _stage_times(gathered: Sequence[Sequence[Pass]], scheme: Scheme, index: int) -> list[Timing]:
    """Bring the ranks' timings of one mix together, stage by stage."""
    num_replicas = len(gathered) // scheme.ranks
    stages = []
    for stage in range(scheme.pp):
        slowest = []
        for replica in range(num_replicas):
            block = scheme.tp * scheme.cp
            first = replica * scheme.ranks + stage * block
            ranks = gathered[first : first + block]
            by_rank = [[timings[str(scheme), index] for timings in passes] for passes in ranks]
            slowest += [max(together, key=sum) for together in zip(*by_rank, strict=True)]
        stages.append(
            Timing(
                statistics.median(timing.forward_ms for timing in slowest),
                statistics.median(timing.backward_ms for timing in slowest),
            )
        )
    return stages


def _forward_share(stage_times: dict[Scheme, list[list[Timing]]]) -> float:
    timings = [timing for mixes in stage_times.values() for stages in mixes for timing in stages]
    forward_ms = sum(timing.forward_ms for timing in timings)
    return forward_ms / (forward_ms + sum(timing.backward_ms for timing in timings))


def _fit(mixes: Sequence[list[int]], stage_times: Sequence[Sequence[Timing]]) -> TimeMeasurement:
    """Fit the mean over the stages; each stage's multiplier is its share of the summed times."""
    totals = [[sum(timing) for timing in stages] for stages in stage_times]
    fit = fit_cost([(mix, statistics.fmean(times)) for mix, times in zip(mixes, totals, strict=True)])
    by_stage = [sum(times) for times in zip(*totals, strict=True)]
    return TimeMeasurement(
        quadratic_ms_per_token2=fit.quadratic_ms_per_token2,
        linear_ms_per_token=fit.linear_ms_per_token,
        fixed_ms=fit.fixed_ms,
        stage_multipliers=[total / statistics.fmean(by_stage) for total in by_stage],
    )
