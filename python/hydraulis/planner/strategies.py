"""The strategies that a run's configuration lists, and the number of ranks that they need."""

from hydraulis._core import Cluster, Strategy
from hydraulis.config.planner import SEARCH, PlannerConfig
from hydraulis.errors import InvalidInputError


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


def most_ranks(config: PlannerConfig) -> int | None:
    """Return the number of ranks of the largest listed strategy; None for a search.

    Raises:
        InvalidInputError: A strategy is malformed (code `strategy_invalid`).
    """
    return max((sum(scheme.ranks for scheme in one.schemes) for one in _parsed(config)), default=None)


def _parsed(config: PlannerConfig) -> list[Strategy]:
    return [] if config.is_search else [Strategy(text) for text in config.strategies]
