from typing import Any

import numpy as np
import pytest

from batching.drawn import COST, long_tail
from hydraulis.batching.adapters.megatron_schedule import balanced_scheduler


class DpBalancedScheduler:
    """The attributes of Megatron-core's class of this name that a schedule reads."""

    def __init__(
        self, cap: int, cp_size: int, dp_size: int, group: int | None, max_num_seqs: int | None = None
    ) -> None:
        self.max_seqlen_per_dp_cp_rank = cap
        self.cp_size = cp_size
        self.dp_size = dp_size
        self.microbatch_group_size_per_vp_stage = group
        self.max_num_seqs = max_num_seqs


@pytest.mark.parametrize("cp", [1, 2])
@pytest.mark.parametrize("group", [None, 2])
def test_micro_batches_keep_the_contract(cp: int, group: int | None) -> None:
    scheduler: Any = balanced_scheduler(DpBalancedScheduler, COST)(500, cp, 4, group)
    lengths = long_tail(150, longest=500).tolist()
    ids = np.random.default_rng(0).permutation(150).tolist()
    groups = scheduler.get_groups_and_subsamples(list(zip(ids, lengths, strict=True)))
    assert len(groups) % (group or 1) == 0
    assert isinstance(scheduler, DpBalancedScheduler)
    by_id = dict(zip(ids, lengths, strict=True))
    seen = []
    for ranks in groups:
        assert len(ranks) == 4 * cp
        for first in range(0, 4 * cp, cp):
            assert all(ranks[first + other] == ranks[first] for other in range(cp))
            assert ranks[first]
            assert sum(by_id[one] for one in ranks[first]) <= 500 * cp
            seen += ranks[first]
    assert sorted(seen) == sorted(ids)
    work = [[sum(COST.times([by_id[one] for one in part])) for part in ranks] for ranks in groups]
    assert sum(map(max, work)) < 1.1 * COST.times(lengths).sum() / 4


def test_a_micro_batch_has_at_most_the_number_of_sequences() -> None:
    scheduler: Any = balanced_scheduler(DpBalancedScheduler, COST)(500, 1, 4, None, max_num_seqs=3)
    groups = scheduler.get_groups_and_subsamples(list(enumerate(long_tail(150, longest=500).tolist())))
    assert sorted(one for ranks in groups for part in ranks for one in part) == list(range(150))
    assert max(len(part) for ranks in groups for part in ranks) == 3
