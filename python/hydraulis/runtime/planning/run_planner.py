"""The planner of a run: plans its batches by the configuration, and learns from their measured times."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from numpy.typing import ArrayLike

from hydraulis._core import Cluster, CostProfile, Link, LookaheadPlan, Plan, Planner, RankMemory, Span
from hydraulis.config.planner import PlannerConfig
from hydraulis.errors import HydraulisError
from hydraulis.model.tensors import wide_dtype
from hydraulis.planner.links import MOST_SLOWDOWN, resolve_links
from hydraulis.planner.strategies import homogeneous_strategies
from hydraulis.runtime.planning.node_links import LinkChange, NodeLinks
from hydraulis.runtime.planning.rank_rates import LEAST_RATE, RankRates, RateChange
from hydraulis.runtime.planning.recalibration import Recalibration, mean_factor
from hydraulis.runtime.state.parameters import ModelParameters
from hydraulis.runtime.step_result import TimedCrossing

# A smaller relative change of a factor does not justify rebuilding the planner and its tables.
_NOTED_CHANGE = 0.01


class Learnt(NamedTuple):
    """The measurements that plans are made with.

    Attributes:
        factors: Correction factor of each scheme's times, by its text.
        rates: Rate of each rank relative to its device's; None if no rank is slow.
        link_slowdowns: Slowdown of each node's links; empty if none are slow.
    """

    factors: Mapping[str, float]
    rates: Sequence[float] | None
    link_slowdowns: Sequence[float] = ()


_NOTHING_LEARNT = Learnt({}, None)


class _RecentPlan(NamedTuple):
    """A recent plan, with the planner and the measurements that it was made with."""

    plan: Plan
    planner: Planner
    learnt: Learnt


class RunPlanner:
    """Plans one batch after another, on rank 0 only.

    Measurements change plans in two moves, since planning has a thread of its own: `observe` takes them after
    an iteration, and `learn` applies them to the plans that are requested later.

    Args:
        config: The planner's configuration.
        profile: Cost profile with exactly the schemes that the run may use.
        cluster: Cluster of the run's ranks, with the rate of each rank's device where ranks differ.
        link: Links used to predict transfers; None to exclude transfers.
        includes_waits: Whether measured computations include waits for tensor and context ranks, as on CUDA.

    Attributes:
        cluster: Cluster of the run's ranks, none of them slow.
        link: Links used to predict transfers, none of them slow; None if plans exclude transfers.
        used: Strategies of the plans so far, in the order of their first use.
        recalibration: Correction of the schemes' times; None without `planner.recalibrate`.
        rank_rates: Rates of slow ranks; None without `planner.slow_rank`.
        node_links: Slowdowns of links between nodes; None without `planner.slow_link`, on one node, and
            without rates of links.
    """

    def __init__(
        self,
        config: PlannerConfig,
        profile: CostProfile,
        cluster: Cluster,
        link: Link | None = None,
        *,
        includes_waits: bool = False,
    ) -> None:
        self._config = config
        self._profile = profile
        self.cluster = cluster
        self.link = link
        self._applied = self._learnt = _NOTHING_LEARNT
        self._planner = self._build_planner(profile, cluster, link)
        # Two entries: the next plan is made before the current iteration is recorded.
        self._recent: deque[_RecentPlan] = deque(maxlen=2)
        self.used: list[str] = []
        self.recalibration = Recalibration(profile, config.recalibrate) if config.recalibrate else None
        self.rank_rates = (
            RankRates(self._usual_rates, config.slow_rank, includes_waits=includes_waits)
            if config.slow_rank
            else None
        )
        has_links = link is not None and cluster.gpus > cluster.gpus_per_node
        self.node_links = (
            NodeLinks(cluster, link.rates, config.slow_link, link.node_slowdowns)
            if link is not None and has_links and config.slow_link
            else None
        )

    @property
    def strategies(self) -> list[str]:
        """The configured strategies; for a search, the homogeneous strategies to compare it with."""
        return (
            homogeneous_strategies(self._profile, self.cluster)
            if self._config.is_search
            else self._planner.strategies
        )

    @property
    def longest_admitted(self) -> int:
        """Tokens of the longest sequence that some strategy admits."""
        return self._planner.longest_admitted

    def plan(self, lengths: ArrayLike, targets: ArrayLike | None = None) -> Plan:
        """Plan a batch with the learnt times and rates; raises the errors of `Planner.plan`.

        Args:
            lengths: Tokens of each sequence, int64 [n].
            targets: Targets of each sequence, int64 [n]; one fewer than its tokens by default.
        """
        self._correct()
        used = self.used if self._config.max_strategies is not None else None
        plan = self._planner.plan(lengths, targets, used=used)
        if plan.strategy not in self.used:
            self.used.append(plan.strategy)
        self._recent.append(_RecentPlan(plan, self._planner, self._applied))
        return plan

    def check(self, plan: Plan, lengths: ArrayLike, targets: ArrayLike | None = None) -> None:
        """Check that the last plan keeps its promises.

        Raises:
            HydraulisError: It breaks one (code `plan_broken`).
        """
        _refuse_broken("the plan", self._planner.check(plan, lengths, targets))

    def plan_lookahead(
        self, batches: Sequence[ArrayLike], targets: Sequence[ArrayLike], *, max_delay: int
    ) -> LookaheadPlan:
        """Plan batches together with the learnt times and rates; see `Planner.plan_lookahead`."""
        self._correct()
        return self._planner.plan_lookahead(batches, targets, max_delay=max_delay)

    def check_lookahead(
        self,
        plan: LookaheadPlan,
        batches: Sequence[ArrayLike],
        targets: Sequence[ArrayLike],
        *,
        max_delay: int,
    ) -> None:
        """Check that the last plan of several batches keeps its promises; see `check`."""
        broken = self._planner.check_lookahead(plan, batches, targets, max_delay=max_delay)
        _refuse_broken("the plan of several batches", broken)

    def timeline(self, plan: Plan) -> list[list[Span]]:
        """Return the predicted timeline of each replica, with the times that a recent plan was made with."""
        return self._planner_of(plan).timeline(plan)

    def rank_memory(self, plan: Plan) -> list[RankMemory | None]:
        """Predict the peak memory of each rank; None for a rank without work."""
        return self._planner_of(plan).rank_memory(plan)

    def observe(self, plan: Plan, timelines: Sequence[Sequence[Span]]) -> None:
        """Update the recalibration from an iteration's measured timelines, if it is enabled."""
        if self.recalibration is not None:
            self.recalibration.observe(plan, timelines)

    def observe_ranks(self, plan: Plan, computed_ms: Sequence[float | None]) -> list[RateChange]:
        """Take the ranks' computation times; return the ranks that became slow or recovered.

        Args:
            plan: Plan of the iteration.
            computed_ms: Computation time of each rank, in milliseconds; None if it is not comparable.
        """
        if self.rank_rates is None:
            return []
        return self.rank_rates.observe(plan, self.timeline(plan), computed_ms)

    def observe_links(self, crossings: Sequence[TimedCrossing]) -> list[LinkChange]:
        """Take the ranks' exchanges between nodes; return the links that became slow or recovered."""
        return [] if self.node_links is None else self.node_links.observe(crossings)

    def learn(self) -> None:
        """Use the observations so far for the plans that are requested from now on."""
        factors = {} if self.recalibration is None else dict(self.recalibration.factors)
        self._learnt = Learnt(
            factors,
            None if self.rank_rates is None else self.rank_rates.rates,
            () if self.node_links is None else self.node_links.slowdowns,
        )

    def planned_with(self, plan: Plan) -> Learnt:
        """Return the measurements that a recent plan was made with; none for other plans."""
        recent = list(self._recent)
        return next((one.learnt for one in recent if one.plan == plan), _NOTHING_LEARNT)

    def resume(
        self,
        used: Sequence[str],
        factors: Mapping[str, float],
        rates: Sequence[float] = (),
    ) -> None:
        """Restore a resumed run's strategies, factors and rates of ranks; nothing of links."""
        self.used = list(used)
        if self.recalibration is not None:
            self.recalibration.factors = dict(factors)
        if self.rank_rates is not None:
            self.rank_rates.resume(rates)
        self.learn()

    def _planner_of(self, plan: Plan) -> Planner:
        """Return the planner that made a recent plan; the current one for other plans."""
        # A copy, because the planning thread may append meanwhile.
        recent = list(self._recent)
        return next((one.planner for one in recent if one.plan == plan), self._planner)

    def _correct(self) -> None:
        """Rebuild the planner if the learnt times, rates or links differ from those that it has."""
        learnt, before = self._learnt, self._applied
        # The planner's times of a scheme without a factor have the mean of the others.
        others = mean_factor(before.factors)
        changes = (
            abs(factor / before.factors.get(scheme, others) - 1) for scheme, factor in learnt.factors.items()
        )
        is_recalibrated = any(change > _NOTED_CHANGE for change in changes)
        factors = learnt.factors if is_recalibrated else before.factors
        is_as_before = (learnt.rates, learnt.link_slowdowns) == (before.rates, before.link_slowdowns)
        if is_as_before and not is_recalibrated:
            return
        self._applied = learnt._replace(factors=factors)
        link = self.link and _slowed(self.link, learnt.link_slowdowns)
        self._planner = self._build_planner(
            self._profile_with(factors), self._cluster_with(learnt.rates), link
        )

    def _profile_with(self, factors: Mapping[str, float]) -> CostProfile:
        return self._profile if self.recalibration is None else self.recalibration.profile(factors)

    @property
    def _usual_rates(self) -> list[float]:
        """The rate of each rank that is not slow."""
        return self.cluster.rates or [1.0] * self.cluster.gpus

    def _cluster_with(self, rates: Sequence[float] | None) -> Cluster:
        if rates is None:
            return self.cluster
        of_usual = zip(self._usual_rates, rates, strict=True)
        return Cluster(
            self.cluster.gpus,
            self.cluster.gpus_per_node,
            rates=[max(usual * rate, LEAST_RATE) for usual, rate in of_usual],
            memory_bytes=self.cluster.memory_bytes,
            devices=self.cluster.devices,
        )

    def _build_planner(self, profile: CostProfile, cluster: Cluster, link: Link | None) -> Planner:
        strategies: Sequence[str] | Literal["search"] = (
            "search" if self._config.is_search else self._config.strategies
        )
        return Planner(
            profile,
            cluster,
            strategies=strategies,
            max_strategies=self._config.max_strategies,
            memory=self._config.memory,
            link=link,
        )


def _slowed(link: Link, slowdowns: Sequence[float]) -> Link:
    """Multiply each node's slowdown by a factor, up to `MOST_SLOWDOWN`; none at all for usual links."""
    if not slowdowns:
        return link
    usual = link.node_slowdowns or [1.0] * len(slowdowns)
    products = (before * factor for before, factor in zip(usual, slowdowns, strict=True))
    return link.with_node_slowdowns([min(product, MOST_SLOWDOWN) for product in products])


def _refuse_broken(plan: str, broken: Sequence[str]) -> None:
    if broken:
        message = f"{plan} breaks its promises, which is a defect of the planner: {'; '.join(broken)}"
        raise HydraulisError(message, code="plan_broken")


def run_link(
    config: PlannerConfig,
    profile: CostProfile,
    cluster: Cluster,
    parameters: ModelParameters,
    dtype: torch.dtype,
) -> Link | None:
    """Return the links used to predict a run's transfers; None if configuration and profile have none.

    Args:
        config: The planner's configuration.
        profile: Cost profile, whose measured links are used if the configuration selects them.
        cluster: Cluster of the run's ranks.
        parameters: Parameters of the model.
        dtype: Dtype of parameters, which gives the bytes of transferred elements.
    """
    links = resolve_links("planner.link", config.link, profile, cluster)
    if links is None:
        return None
    return Link(
        parameters.table,
        gigabytes_per_s=links.rates.gigabytes_per_s,
        gpu_gigabytes_per_s=links.rates.gpu_gigabytes_per_s,
        message_us=links.rates.message_us,
        parameter_bytes=dtype.itemsize,
        gradient_bytes=wide_dtype(dtype).itemsize,
        node_slowdowns=links.node_slowdowns,
    )
