"""Comparison of planners: each plans the same batches, and the same simulator runs their plans."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from hydraulis._core import (
    Cluster,
    CostProfile,
    Extrapolation,
    Link,
    Network,
    Plan,
    Planner,
    RankMemory,
    Scheme,
    Simulation,
)
from hydraulis.config.kinds import CheckpointingKind, MemoryRule, ShardingKind
from hydraulis.errors import InfeasibleError, InvalidInputError
from hydraulis.planner.profile_document import fitted_times, with_schemes
from hydraulis.planner.static import StaticComparison
from hydraulis.planner.strategies import homogeneous_strategies
from hydraulis.progress import ProgressCallback, ignore_progress

Batch = npt.NDArray[np.int64]
PARTS = ("compute", "slower_rank", "bubble", "slower_replica", "unused", "transfers")
_KINDS: tuple[CheckpointingKind, ...] = get_args(CheckpointingKind)
# Names of planners; any other name is a strategy.
_SHARDED: dict[str, ShardingKind] = {"sharded-gradients": "gradients", "sharded-parameters": "parameters"}
PLANNERS = ("static", "list", "search", "uniform", "recompute", *_KINDS, *_SHARDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonSetup:
    """The inputs of all planners, and the conditions of the simulation.

    Attributes:
        profile: Cost profile of the model.
        cluster: Cluster with all ranks.
        batches: Lengths of each batch.
        places: Index of each batch's sequences in the data, counted from 0, for messages; None if unknown.
        memory: Memory rule of micro-batches, for every planner.
        listed: Strategies of the planner `list`; None for the profile's.
        slowdowns: Factor of the times of each slow rank; unknown to the planners.
        link: Link by which all planners predict transfers; None to leave transfers out.
        actual_link: Link of the simulated transfers, unknown to the planners; None for `link`.
        network: Network for activations between stages; None for instant messages.
    """

    profile: CostProfile
    cluster: Cluster
    batches: Sequence[Batch]
    places: Sequence[Batch] | None = None
    memory: MemoryRule = "per_micro_batch"
    listed: Sequence[str] | None = None
    slowdowns: Mapping[int, float] = field(default_factory=dict)
    link: Link | None = None
    actual_link: Link | None = None
    network: Network | None = None

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence in all batches."""
        return max(int(batch.max()) for batch in self.batches)


@dataclass(slots=True)
class PlannerUnderTest:
    """The simulated iterations of one planner.

    Attributes:
        name: Name of the planner; for `static` with its strategy.
        iteration_ms: Simulated time of each batch in ms, without transfers.
        step_ms: Simulated time of each batch in ms, with exposed transfers; equal to `iteration_ms` without
            links.
        overlapped_ms: Time in ms of each batch's transfers that overlaps with computation.
        strategies: Number of batches for each chosen strategy.
        parts_ms: Time of all ranks by part, summed over the batches and divided by the number of ranks; the
            parts add up to the time of all steps.
        needed_ms: Time that the sequences need at least, summed and divided as `parts_ms`: each sequence
            under the scheme that takes the least time of its ranks, memory and fixed times left out.
        stage_memory: Memory of the fullest rank of each stage in all iterations, by scheme.
        extrapolation: Largest extrapolation of its plans beyond the profile's measurements; None without one.
    """

    name: str
    iteration_ms: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    overlapped_ms: list[float] = field(default_factory=list)
    strategies: Counter[str] = field(default_factory=Counter)
    parts_ms: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    needed_ms: float = 0.0
    stage_memory: dict[str, list[RankMemory]] = field(default_factory=dict)
    extrapolation: Extrapolation | None = None

    @property
    def memory(self) -> RankMemory | None:
        """Memory of the fullest rank in all iterations; None before the first iteration."""
        memories = [memory for stages in self.stage_memory.values() for memory in stages]
        return max(memories, key=_total_bytes, default=None)

    @property
    def mean_ms(self) -> float:
        """Mean time of a step in ms."""
        return float(np.mean(self.step_ms))

    def percentile_ms(self, percent: float) -> float:
        """Percentile of the steps' times in ms, by nearest rank."""
        return float(np.percentile(self.step_ms, percent, method="inverted_cdf"))

    def share(self, part: str) -> float:
        """Return a part of `PARTS` as a share of all ranks' time."""
        return self.parts_ms[part] / sum(self.parts_ms.values())

    @property
    def utilisation(self) -> float:
        """Share of all ranks' time in computation."""
        return self.share("compute")

    @property
    def needed_share(self) -> float:
        """Share of all ranks' time that the sequences need at least."""
        return self.needed_ms / sum(self.parts_ms.values())

    @property
    def transfer_ms(self) -> float:
        """Mean exposed time of transfers in ms."""
        return float(np.mean(self.step_ms) - np.mean(self.iteration_ms))

    @property
    def overlapped_share(self) -> float:
        """Share of the transfers' time that overlaps with computation; 1 without transfers."""
        exposed, overlapped = sum(self.step_ms) - sum(self.iteration_ms), sum(self.overlapped_ms)
        return overlapped / (overlapped + exposed) if overlapped + exposed > 0 else 1.0

    def add(self, plan: Plan, run: Simulation) -> None:
        """Add the simulated iteration of a plan."""
        ranks = plan.cluster.gpus
        self.strategies[plan.strategy] += 1
        self.extrapolation = larger_extrapolation(self.extrapolation, plan.extrapolation)
        self.iteration_ms.append(run.iteration_ms)
        self.step_ms.append(run.step_ms)
        self.overlapped_ms.append(run.overlapped_ms)
        for part in PARTS:
            self.parts_ms[part] += getattr(run.gpu_time, f"{part}_ms") / ranks
        for replica, stages in zip(plan.replicas, run.stages, strict=True):
            memory = [stage.memory for stage in stages]
            known = self.stage_memory.setdefault(str(replica.scheme), memory)
            known[:] = [max(pair, key=_total_bytes) for pair in zip(known, memory, strict=True)]


def cheapest_work(profile: CostProfile) -> Callable[[Batch], float]:
    """Return a function of a batch: the least time in ms of all ranks together that its sequences need.

    Each sequence runs under the scheme of the profile that takes the least time of its ranks. A wider replica
    takes more time of all ranks together, since its ranks exchange activations.
    """
    times = [(one.scheme.ranks, one) for one in fitted_times(profile)]

    def of(batch: Batch) -> float:
        lengths = np.asarray(batch, dtype=np.float64)
        works = [
            ranks * (one.quadratic_ms_per_token2 * lengths**2 + one.linear_ms_per_token * lengths)
            for ranks, one in times
        ]
        return float(np.min(works, axis=0).sum())

    return of


def _total_bytes(memory: RankMemory) -> float:
    return memory.total_bytes


def larger_extrapolation(one: Extrapolation | None, other: Extrapolation | None) -> Extrapolation | None:
    """Return the larger of two extrapolations; None without any."""
    return max(
        (extrapolation for extrapolation in (one, other) if extrapolation),
        key=lambda extrapolation: extrapolation.beyond,
        default=None,
    )


def compare(
    setting: ComparisonSetup, names: Sequence[str], progress: ProgressCallback = ignore_progress
) -> list[PlannerUnderTest]:
    """Plan and simulate every batch with every planner.

    Args:
        setting: Inputs of the planners and conditions of the simulation.
        names: Names of planners: `list`, `search`, `static` (the best homogeneous strategy for all batches
            together), `uniform` and `recompute` (a search without layer plans and without copies in host
            memory, or without the latter alone), a kind of checkpointing (a search with it in every layer),
            `sharded-gradients`, `sharded-parameters` (a search with that sharding), or a strategy, which is
            kept for all batches.
        progress: Callback, called before each batch.

    Raises:
        InvalidInputError: A strategy is invalid or does not fit (see `Planner`); a rank or a factor is out of
            range (code `argument_invalid`); the profile has no scheme for a search, is sharded already, or
            does not tell the size of parameters (`profile_invalid`).
        InfeasibleError: The planner's strategies do not admit a sequence of a batch, or no homogeneous
            strategy admits the longest sequence (code `sequence_too_long`).
    """
    return [_run(name, setting, progress) for name in names]


def _run(name: str, setting: ComparisonSetup, progress: ProgressCallback) -> PlannerUnderTest:
    planner, full_name = _planner(name, setting, progress)
    planned = PlannerUnderTest(full_name)
    planned.needed_ms = sum(map(cheapest_work(setting.profile), setting.batches)) / setting.cluster.gpus
    for done, batch in enumerate(setting.batches):
        progress(f"simulating {name}", done, len(setting.batches))
        try:
            plan = planner.plan(batch)
        except InfeasibleError as error:
            raise with_batch_number(
                error, done, batch, None if setting.places is None else setting.places[done]
            ) from None
        run = planner.simulate(
            plan, slowdowns=setting.slowdowns, network=setting.network, link=setting.actual_link
        )
        planned.add(plan, run)
    return planned


def with_batch_number(
    error: InfeasibleError, number: int, batch: Batch, places: Batch | None = None
) -> InfeasibleError:
    """Add the number of the batch to an error, and the index of the sequence in the data if known.

    Args:
        error: Error of the planner.
        number: Number of the batch, counted from 0.
        batch: Tokens of each sequence of the batch.
        places: Index of each sequence in the data, counted from 0.
    """
    # The error is about the first of the longest sequences.
    longest = int(np.argmax(batch))
    where = ""
    if places is not None:
        where = f" (its sequence {longest} is number {places[longest]} of the data; all count from 0)"
    return InfeasibleError(f"batch {number}: {error}{where}", code=error.code)


def _planner(name: str, setting: ComparisonSetup, progress: ProgressCallback) -> tuple[Planner, str]:
    """Make the planner of a name, with its full name: `static` includes its strategy."""
    strategies: Sequence[str] | Literal["search"] | None
    full_name, profile = name, setting.profile
    match name:
        case "search":
            strategies = "search"
        case "uniform" | "recompute":
            strategies, profile = "search", _with_plans(profile, name)
        case _ if name in _KINDS:
            strategies, profile = "search", _with_plans(profile, name)
        case _ if name in _SHARDED:
            strategies, profile = "search", profile.with_sharding(_SHARDED[name])
        case "list":
            strategies = setting.listed
        case "static":
            best = best_static(setting, progress)
            strategies, full_name = [best], f"static {best}"
        case _:
            strategies = [name]
    planner = Planner(
        profile, setting.cluster, strategies=strategies, memory=setting.memory, link=setting.link
    )
    return planner, full_name


def _with_plans(profile: CostProfile, name: str) -> CostProfile:
    """Return the profile with the schemes of one kind of checkpointing in all layers, or without copies.

    Args:
        profile: Cost profile.
        name: The kind, `uniform` for every kind without copies in host memory, or `recompute` for all layer
            plans without such copies.

    Raises:
        InvalidInputError: The profile has none (code `profile_invalid`).
    """
    uniform = [kind for kind in _KINDS if "offload" not in kind] if name == "uniform" else [name]

    def is_kept(scheme: Scheme) -> bool:
        if name == "recompute":
            return "offload" not in scheme.checkpointing
        return scheme.checkpointing in uniform

    kept = [scheme for scheme in map(Scheme, profile.schemes) if is_kept(scheme)]
    if not kept:
        message = f"profile '{profile.name}' has no scheme with checkpointing '{name}': leave {name} out"
        raise InvalidInputError(message, code="profile_invalid")
    return with_schemes(profile, kept)


def best_static(setting: ComparisonSetup, progress: ProgressCallback = ignore_progress) -> str:
    """Return the homogeneous strategy with the least predicted time of all batches together.

    Raises:
        InfeasibleError: No strategy admits the longest sequence (code `sequence_too_long`).
    """
    candidates = homogeneous_strategies(setting.profile, setting.cluster)
    comparison = StaticComparison.for_strategies(
        setting.profile, setting.cluster, candidates, setting.longest, setting.link, setting.memory
    )
    for done, batch in enumerate(setting.batches):
        progress("planning under each static strategy", done, len(setting.batches))
        comparison.add(batch)
    best = comparison.best()
    if best is None:
        message = (
            f"no homogeneous strategy on {setting.cluster.gpus} GPUs admits {setting.longest} tokens, the "
            "longest sequence: leave static out, or drop that sequence"
        )
        raise InfeasibleError(message, code="sequence_too_long")
    return best.strategy
