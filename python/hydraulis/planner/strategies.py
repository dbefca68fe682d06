"""The strategies that a run's configuration lists, and those of equal replicas that fit a cluster."""

from hydraulis._core import Cluster, CostProfile, Planner, Scheme, Strategy
from hydraulis.config.planner import SEARCH, PlannerConfig
from hydraulis.errors import HydraulisError, InvalidInputError


def named_strategies(config: PlannerConfig, cluster: Cluster) -> list[Strategy]:
    """Parse the strategies that a configuration lists; empty for a search.

    Raises:
        InvalidInputError: A strategy is malformed (code `strategy_invalid`), or does not fit the cluster
            (`strategy_unplaceable`).
    """
    strategies = _parsed(config)
    for strategy in strategies:
        try:
            strategy.place(cluster)
        except InvalidInputError as error:
            message = f"{error}; planner.strategies = {list(SEARCH)} fits any number of ranks"
            raise InvalidInputError(message, code=error.code) from error
    return strategies


def listed_schemes(config: PlannerConfig) -> list[Scheme]:
    """Return the schemes of the strategies that a configuration lists; empty for a search.

    Raises:
        InvalidInputError: A strategy is malformed (code `strategy_invalid`).
    """
    return sorted({scheme for strategy in _parsed(config) for scheme in strategy.schemes})


def most_ranks(config: PlannerConfig) -> int | None:
    """Return the number of ranks of the largest listed strategy; None for a search.

    Raises:
        InvalidInputError: A strategy is malformed (code `strategy_invalid`).
    """
    return max((sum(scheme.ranks for scheme in one.schemes) for one in _parsed(config)), default=None)


def _parsed(config: PlannerConfig) -> list[Strategy]:
    return [] if config.is_search else [Strategy(text) for text in config.strategies]


def homogeneous_strategies(profile: CostProfile, cluster: Cluster) -> list[str]:
    """Return one strategy per scheme that fits: the most replicas that the cluster has room for."""
    usable = [text for text in profile.schemes if strategy_fits(profile, cluster, f"1x{text}")]
    # Placement may leave ranks of a node unused, so the ranks alone only bound the number of replicas.
    counts = ((text, range(cluster.gpus // Scheme(text).ranks, 0, -1)) for text in usable)
    return [
        next(f"{count}x{text}" for count in most if strategy_fits(profile, cluster, f"{count}x{text}"))
        for text, most in counts
    ]


def strategy_fits(profile: CostProfile, cluster: Cluster, strategy: str) -> bool:
    """Check that the profile has the schemes of a strategy and the cluster has room for it."""
    try:
        Planner(profile, cluster, strategies=[strategy])
    except HydraulisError:
        return False
    return True
