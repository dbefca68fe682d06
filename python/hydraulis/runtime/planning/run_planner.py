"""The planner of a run: what its configuration says, and what it learns on the way."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from hydraulis._core import Cluster, CostProfile, Link, Plan, Planner, RankMemory, Span
from hydraulis.config.planner import PlannerConfig
from hydraulis.errors import InfeasibleError
from hydraulis.planner.compare import homogeneous_strategies
from hydraulis.planner.profile import resolve_link_rates
from hydraulis.runtime.planning.recalibration import Recalibration
from hydraulis.runtime.state.buffers import StrategyBuffers

# A smaller change of a factor is no reason to make the planner, and its tables, anew.
_NOTED_CHANGE = 0.01

Lengths = npt.NDArray[np.int64]


class RunPlanner:
    """Plans one batch after another, on rank 0 alone.

    Args:
        config: of the planner.
        profile: of the schemes that the run may use, no others.
        cluster: of its ranks.
        link: that transfers are predicted by; None to leave them out.

    Attributes:
        used: the strategies of the plans so far, in the order of their first use.
        recalibration: what has been learnt of the schemes' times; None where nothing is.
    """

    def __init__(
        self, config: PlannerConfig, profile: CostProfile, cluster: Cluster, link: Link | None = None
    ) -> None:
        self._config = config
        self._profile = profile
        self._cluster = cluster
        self._link = link
        self._planner = self._made(profile)
        self._planned_with: Mapping[str, float] = {}
        # The next plan is made before the one that is carried out is looked at.
        self._made_by: deque[tuple[Plan, Planner]] = deque(maxlen=2)
        self.used: list[str] = []
        self.recalibration = Recalibration(profile, config.recalibrate) if config.recalibrate else None

    @property
    def strategies(self) -> list[str]:
        """What the planner chooses from; for a search the homogeneous strategies, to compare it with."""
        return (
            homogeneous_strategies(self._profile, self._cluster)
            if self._config.is_search
            else self._planner.strategies
        )

    @property
    def longest_admitted(self) -> int:
        """Tokens of the longest sequence that some strategy admits."""
        return self._planner.longest_admitted

    def check_longest(self, longest: int) -> None:
        """Refuse data whose longest sequence no strategy admits.

        Raises:
            InfeasibleError: none does (code `sequence_too_long`).
        """
        if longest > self.longest_admitted:
            message = (
                f"the longest sequence has {longest} tokens, and no strategy admits more than "
                f"{self.longest_admitted}: lower data.max_tokens, raise planner.memory_mib, or add a wider "
                "strategy to planner.strategies"
            )
            raise InfeasibleError(message, code="sequence_too_long")

    def plan(self, lengths: Lengths, targets: Lengths | None = None) -> Plan:
        """Plan a batch, by the times that are known now; raises what `Planner.plan` does."""
        self._correct()
        used = self.used if self._config.max_strategies is not None else None
        plan = self._planner.plan(lengths, targets, used=used)
        if plan.strategy not in self.used:
            self.used.append(plan.strategy)
        self._made_by.append((plan, self._planner))
        return plan

    def check(self, plan: Plan, lengths: Lengths, targets: Lengths | None = None) -> list[str]:
        """Say what is wrong with the plan that was made last; nothing if it keeps its promises."""
        return self._planner.check(plan, lengths, targets)

    def timeline(self, plan: Plan) -> list[list[Span]]:
        """Give the predicted timeline of each replica, by the times that a plan of late was made with."""
        planner = next((planner for made, planner in self._made_by if made == plan), self._planner)
        return planner.timeline(plan)

    def rank_memory(self, plan: Plan) -> list[RankMemory | None]:
        """Predict what each rank holds at its fullest moment; None without work."""
        return self._planner.rank_memory(plan)

    def observe(self, plan: Plan, timelines: Sequence[Sequence[Span]]) -> None:
        """Learn from an iteration what its schemes take, if that is asked for."""
        if self.recalibration is not None:
            self.recalibration.observe(plan, timelines)

    def resume(self, used: Sequence[str], factors: Mapping[str, float]) -> None:
        """Go on where an earlier run ended: with the strategies that it used, and what it had learnt."""
        self.used = list(used)
        if self.recalibration is not None:
            self.recalibration.factors = dict(factors)

    def _correct(self) -> None:
        """Make the planner anew if what was learnt differs from what it plans with."""
        if self.recalibration is None:
            return
        factors = dict(self.recalibration.factors)
        changes = (
            abs(factor / self._planned_with.get(scheme, 1.0) - 1) for scheme, factor in factors.items()
        )
        if any(change > _NOTED_CHANGE for change in changes):
            self._planner = self._made(self.recalibration.profile())
            self._planned_with = factors

    def _made(self, profile: CostProfile) -> Planner:
        strategies: Sequence[str] | Literal["search"] = (
            "search" if self._config.is_search else self._config.strategies
        )
        return Planner(
            profile,
            self._cluster,
            strategies=strategies,
            max_strategies=self._config.max_strategies,
            memory=self._config.memory,
            link=self._link,
        )


def run_link(
    config: PlannerConfig, profile: CostProfile, cluster: Cluster, buffers: StrategyBuffers
) -> Link | None:
    """Give the links that a run's transfers are predicted by; None if configuration and profile have none.

    Args:
        config: of the planner.
        profile: whose measured links are taken where the configuration says so.
        cluster: of the ranks.
        buffers: of a rank; their types are those that travel.
    """
    rates = resolve_link_rates("planner.link", config.link, profile, cluster)
    if rates is None:
        return None
    return Link(
        buffers.parameters.table,
        gigabytes_per_s=rates.gigabytes_per_s,
        gpu_gigabytes_per_s=rates.gpu_gigabytes_per_s,
        message_us=rates.message_us,
        parameter_bytes=buffers.parameter.itemsize,
        gradient_bytes=buffers.gradient.itemsize,
    )
