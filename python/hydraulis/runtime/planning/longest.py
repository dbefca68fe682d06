"""The check that a run can plan its longest sequence, and the memory that would suffice."""

from bisect import bisect_left

from hydraulis._core import Cluster, CostProfile, Scheme
from hydraulis.config.planner import PlannerConfig
from hydraulis.errors import InfeasibleError
from hydraulis.runtime.planning.run_planner import RunPlanner
from hydraulis.text.values import MIB

# The most memory of a rank that a message names.
_MOST_MIB = 1 << 24


def check_longest(planner: RunPlanner, config: PlannerConfig, profile: CostProfile, longest: int) -> None:
    """Check that some strategy admits the data's longest sequence.

    Args:
        planner: Planner of the run.
        config: Its configuration.
        profile: Its cost profile.
        longest: Tokens of the longest sequence.

    Raises:
        InfeasibleError: No strategy admits it (code `sequence_too_long`).
    """
    admitted = planner.longest_admitted
    if longest <= admitted:
        return
    memory = (
        "measure a profile with more memory"
        if config.profile
        else _larger_memory(config, profile, planner.cluster, longest)
    )
    wider = "use more ranks"
    if not config.is_search:
        wider = "add a wider strategy to planner.strategies"
    elif config.schemes:
        wider = "add a wider scheme to planner.schemes"
    message = (
        f"the longest sequence has {longest:,} tokens, and no strategy admits more than {admitted:,}: "
        f"lower data.max_tokens, {memory}, or {wider}"
    )
    raise InfeasibleError(message, code="sequence_too_long")


def _larger_memory(config: PlannerConfig, profile: CostProfile, cluster: Cluster, longest: int) -> str:
    """Return the remedy of a larger memory, with the least one that suffices where it is known."""
    if config.memory_mib is None or cluster.memory_bytes is not None:
        return "raise planner.memory_mib"
    sufficient = sufficient_mib(profile, cluster, longest)
    to = "" if sufficient is None else f" to {sufficient:,}"
    return f"raise planner.memory_mib = {config.memory_mib:,}{to}"


def sufficient_mib(profile: CostProfile, cluster: Cluster, longest: int) -> int | None:
    """Return MiB for each rank with which every scheme has room and some scheme admits a length.

    Args:
        profile: Cost profile with the memory of each scheme.
        cluster: Cluster of equal ranks.
        longest: Tokens of the longest sequence.

    Returns:
        The smallest such number; None if no memory suffices.
    """

    def suffices(mib: int) -> bool:
        ranks = Cluster(cluster.gpus, cluster.gpus_per_node, memory_bytes=[mib * MIB] * cluster.gpus)
        try:
            caps = [profile.cap_tokens(Scheme(scheme), ranks) for scheme in profile.schemes]
        except InfeasibleError:
            return False
        return max(caps) >= longest

    found = bisect_left(range(_MOST_MIB), True, key=suffices)
    return None if found == _MOST_MIB else found
