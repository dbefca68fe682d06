"""Which heads each rank of a context group attends with, under Ulysses."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HeadShare:
    """The heads of one rank.

    Attributes:
        queries: its query heads; consecutive, at least one.
        keys: the key/value heads that it needs for them, in the order that grouped-query attention expects:
            as many divide its query heads, and each serves a run of them.
    """

    queries: range
    keys: tuple[int, ...]

    @property
    def key_runs(self) -> list[range]:
        """The key/value heads as runs of consecutive ones: none twice in a run."""
        runs: list[range] = []
        for key in self.keys:
            if runs and runs[-1].stop == key:
                runs[-1] = range(runs[-1].start, key + 1)
            else:
                runs.append(range(key, key + 1))
        return runs


def share_heads(num_queries: int, num_keys: int, cp: int) -> list[HeadShare]:
    """Share query heads out over `cp` ranks, evenly but for one, with the key/value heads they use.

    A key/value head goes to every rank that has one of its query heads. Where a rank's query heads are
    neither whole groups nor within one, it gets a key/value head for each of them.

    Args:
        num_queries: query heads that are here, at least `cp`.
        num_keys: key/value heads that are here; they divide the query heads.
        cp: the ranks.
    """
    group = num_queries // num_keys
    shares = []
    for rank in range(cp):
        queries = range(num_queries * rank // cp, num_queries * (rank + 1) // cp)
        used = tuple(query // group for query in queries)
        distinct = tuple(dict.fromkeys(used))
        whole_groups = queries.start % group == 0 and queries.stop % group == 0
        shares.append(HeadShare(queries, distinct if whole_groups or len(distinct) == 1 else used))
    return shares
