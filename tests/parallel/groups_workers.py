"""Functions that the ranks of test_groups.py run."""

from collections.abc import Iterable
from datetime import timedelta
from unittest.mock import patch

import torch
import torch.distributed as dist

from hydraulis.errors import InvalidInputError
from hydraulis.parallel.groups import ProcessGroups


def sums_of_groups(rank_sets: list[list[int]]) -> list[int | None]:
    """Sum the ranks of each group over that group; None where this rank is not in it."""
    groups = ProcessGroups(timedelta(seconds=60))
    groups.ensure(rank_sets)
    sums: list[int | None] = []
    for ranks in rank_sets:
        total = torch.tensor([dist.get_rank()])
        if dist.get_rank() in ranks:
            dist.all_reduce(total, group=groups.get(ranks))
        sums.append(int(total) if dist.get_rank() in ranks else None)
    return sums


def created_groups(calls: list[list[Iterable[int]]]) -> tuple[list[list[int]], int]:
    """List the groups that these calls of `ensure` create, in order, and count the stored groups."""
    groups = ProcessGroups(timedelta(seconds=60))
    with patch.object(dist, "new_group", wraps=dist.new_group) as new_group:
        for rank_sets in calls:
            groups.ensure(rank_sets)
    for call in new_group.call_args_list:
        assert call.kwargs == {"timeout": timedelta(seconds=60), "backend": "gloo", "pg_options": None}
    return [call.args[0] for call in new_group.call_args_list], len(groups)


def refusal(ensured: list[list[int]], wanted: list[int]) -> str | None:
    groups = ProcessGroups(timedelta(seconds=60))
    groups.ensure(ensured)
    try:
        groups.get(wanted)
    except InvalidInputError as error:
        return f"{error.code}: {error}"
    return None
