"""Planners side by side over many batches, each step simulated under the same conditions."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from hydraulis._core import (
    Cluster,
    CostProfile,
    Guess,
    Link,
    Network,
    Plan,
    Planner,
    RankMemory,
    Scheme,
    Simulation,
)
from hydraulis.config.kinds import MemoryRule
from hydraulis.errors import HydraulisError, InfeasibleError
from hydraulis.planner.static import StaticComparison
from hydraulis.progress import ProgressCallback, ignore_progress

Batch = npt.NDArray[np.int64]
PARTS = ("compute", "slower_rank", "bubble", "slower_replica", "unused", "transfers")
# Names that stand for a planner; any other is a strategy.
PLANNERS = ("static", "list", "search")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonSetup:
    """What all planners of a comparison plan for, and what their plans run under.

    Attributes:
        profile: of the model.
        cluster: of all ranks.
        batches: the lengths of each batch.
        places: of the same sequences in the data, from 0, for what is refused; None if nobody knows.
        memory: how micro-batches fit, for every planner.
        listed: strategies that `list` chooses from; None for those of the profile.
        slowdowns: for each slow rank how many times as long it takes; no planner knows of them.
        link: that all planners plan transfers by; None to leave these out.
        actual_link: that transfers are simulated by, which no planner knows of; None for `link`.
        network: what carries activations between stages; None if they arrive at once.
    """

    profile: CostProfile
    cluster: Cluster
    batches: Sequence[Batch]
    places: Sequence[Batch] | None = None
    memory: MemoryRule = "cap"
    listed: Sequence[str] | None = None
    slowdowns: Mapping[int, float] = field(default_factory=dict)
    link: Link | None = None
    actual_link: Link | None = None
    network: Network | None = None

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence of all batches."""
        return max(int(batch.max()) for batch in self.batches)


@dataclass(slots=True)
class PlannerUnderTest:
    """One planner's iterations over the batches.

    Attributes:
        name: as asked for; of `static` with the strategy that it settled on.
        iteration_ms: simulated time of each batch, transfers left out.
        step_ms: the same with what of the transfers is not hidden; without links as long as `iteration_ms`.
        overlapped_ms: what computation hides of the transfers, by batch.
        strategies: how often each was chosen.
        parts_ms: where all ranks' time went, by part, summed over the batches and divided by the ranks:
            together as long as all steps.
        stage_memory: for each scheme that was used, of the fullest rank of each stage in all iterations, by
            what it holds.
        guess: how far its plans go beyond what the profile has measured; None if they do not.
    """

    name: str
    iteration_ms: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    overlapped_ms: list[float] = field(default_factory=list)
    strategies: Counter[str] = field(default_factory=Counter)
    parts_ms: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    stage_memory: dict[str, list[RankMemory]] = field(default_factory=dict)
    guess: Guess | None = None

    @property
    def memory(self) -> RankMemory | None:
        """What the fullest rank of all iterations holds; None before the first."""
        of_stages = [memory for stages in self.stage_memory.values() for memory in stages]
        return max(of_stages, key=_total_bytes, default=None)

    @property
    def mean_ms(self) -> float:
        """The mean step."""
        return float(np.mean(self.step_ms))

    def percentile_ms(self, percent: float) -> float:
        """The step that so many percent of them do not exceed, by nearest rank."""
        return float(np.percentile(self.step_ms, percent, method="inverted_cdf"))

    @property
    def utilisation(self) -> float:
        """The share of all ranks' time in which they compute."""
        return self.parts_ms["compute"] / sum(self.parts_ms.values())

    @property
    def transfer_ms(self) -> float:
        """What transfers add to the mean iteration."""
        return float(np.mean(self.step_ms) - np.mean(self.iteration_ms))

    @property
    def overlapped_share(self) -> float:
        """The share of all transfers' time that computation hides; all of it where nothing moves."""
        exposed, hidden = sum(self.step_ms) - sum(self.iteration_ms), sum(self.overlapped_ms)
        return hidden / (hidden + exposed) if hidden + exposed > 0 else 1.0

    def add(self, plan: Plan, run: Simulation) -> None:
        """Add a plan's iteration."""
        ranks = plan.cluster.gpus
        self.strategies[plan.strategy] += 1
        self.guess = larger_extrapolation(self.guess, plan.guess)
        self.iteration_ms.append(run.iteration_ms)
        self.step_ms.append(run.step_ms)
        self.overlapped_ms.append(run.hidden_ms)
        for part in PARTS:
            self.parts_ms[part] += getattr(run.gpu_time, f"{part}_ms") / ranks
        for replica, stages in zip(plan.replicas, run.stages, strict=True):
            memory = [stage.memory for stage in stages]
            known = self.stage_memory.setdefault(str(replica.scheme), memory)
            known[:] = [max(pair, key=_total_bytes) for pair in zip(known, memory, strict=True)]


def _total_bytes(memory: RankMemory) -> float:
    return memory.total_bytes


def larger_extrapolation(one: Guess | None, other: Guess | None) -> Guess | None:
    """Give the guess that goes further beyond what was measured."""
    return max((guess for guess in (one, other) if guess), key=lambda guess: guess.beyond, default=None)


def compare(
    setting: ComparisonSetup, names: Sequence[str], progress: ProgressCallback = ignore_progress
) -> list[PlannerUnderTest]:
    """Plan and simulate every batch with every planner.

    Args:
        setting: what they plan for.
        names: `list`, `search`, `static` (the homogeneous strategy that is best for all batches together),
            or a strategy as written, which then is kept for all batches.
        progress: called before each batch with what is done, how many are, and of how many.

    Raises:
        InvalidInputError: a strategy is none, or does not fit (as `Planner`); a rank or factor is out of
            range (code `argument_invalid`).
        InfeasibleError: The planner's strategies do not admit a sequence of a batch, or no homogeneous
            strategy admits the longest sequence (code `sequence_too_long`).
    """
    return [_run(name, setting, progress) for name in names]


def _run(name: str, setting: ComparisonSetup, progress: ProgressCallback) -> PlannerUnderTest:
    planner, full_name = _planner(name, setting, progress)
    contestant = PlannerUnderTest(full_name)
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
        contestant.add(plan, run)
    return contestant


def with_batch_number(
    error: InfeasibleError, number: int, batch: Batch, places: Batch | None = None
) -> InfeasibleError:
    """Say in which batch a sequence is too long, and which one of the data it is, if that is known.

    Args:
        error: of the planner.
        number: of the batch, from 0.
        batch: its lengths, in tokens.
        places: of its sequences in the data, from 0.
    """
    # The planner names the first of the longest.
    longest = int(np.argmax(batch))
    where = ""
    if places is not None:
        where = f" (its sequence {longest} is number {places[longest]} of the data; all count from 0)"
    return InfeasibleError(f"batch {number}: {error}{where}", code=error.code)


def _planner(name: str, setting: ComparisonSetup, progress: ProgressCallback) -> tuple[Planner, str]:
    """Make the planner of a name, and say which strategy `static` stands for."""
    strategies: Sequence[str] | Literal["search"] | None
    full_name = name
    match name:
        case "search":
            strategies = "search"
        case "list":
            strategies = setting.listed
        case "static":
            best = best_static(setting, progress)
            strategies, full_name = [best], f"static {best}"
        case _:
            strategies = [name]
    planner = Planner(
        setting.profile, setting.cluster, strategies=strategies, memory=setting.memory, link=setting.link
    )
    return planner, full_name


def best_static(setting: ComparisonSetup, progress: ProgressCallback = ignore_progress) -> str:
    """Return the homogeneous strategy under which all batches together are planned to take least.

    Raises:
        InfeasibleError: none admits the longest sequence (code `sequence_too_long`).
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


def homogeneous_strategies(profile: CostProfile, cluster: Cluster) -> list[str]:
    """Return, for each scheme that fits, as many replicas of it as the cluster has room for."""
    usable = [text for text in profile.schemes if strategy_fits(profile, cluster, f"1x{text}")]
    # Placement may leave ranks of a node over, so that fewer fit than the ranks alone would say.
    counts = ((text, range(cluster.gpus // Scheme(text).ranks, 0, -1)) for text in usable)
    return [
        next(f"{count}x{text}" for count in most if strategy_fits(profile, cluster, f"{count}x{text}"))
        for text, most in counts
    ]


def strategy_fits(profile: CostProfile, cluster: Cluster, strategy: str) -> bool:
    """Tell whether a planner takes a strategy: the profile has its schemes, and the cluster room for it."""
    try:
        Planner(profile, cluster, strategies=[strategy])
    except HydraulisError:
        return False
    return True
