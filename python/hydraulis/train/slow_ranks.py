"""Messages about ranks that became slow, and about those that recovered."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from hydraulis.runtime.planning.rank_rates import RateChange

# Most ranks of a host that a message names.
_MAX_NAMED = 8


def rate_messages(step: int, changes: Sequence[RateChange], hosts: Sequence[str]) -> Iterator[str]:
    """Describe changed rates, in a message for each host and kind of change.

    Args:
        step: Number of the step whose times decided.
        changes: Ranks that became slow or recovered.
        hosts: Name of each rank's host.
    """
    by_host: dict[tuple[str, bool], list[RateChange]] = defaultdict(list)
    for change in changes:
        by_host[hosts[change.rank], change.slowdown > 1].append(change)
    for (host, is_slow), same in by_host.items():
        ranks, plural = _named([change.rank for change in same]), len(same) > 1
        if is_slow:
            slowest = max(change.slowdown for change in same)
            computes = f"compute up to {slowest:g}" if plural else f"computes {slowest:g}"
            yield (
                f"step {step}: {ranks} on {host} {computes} times as long as the other ranks for the same "
                "work; plans give such ranks less work from now on"
            )
        else:
            yield f"step {step}: {ranks} on {host} {'compute' if plural else 'computes'} at full rate again"


def _named(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    more = f" and {len(ranks) - _MAX_NAMED} more" if len(ranks) > _MAX_NAMED else ""
    return f"ranks {', '.join(map(str, ranks[:_MAX_NAMED]))}{more}"
