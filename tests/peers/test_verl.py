"""verl's own partition functions and micro-batches, with our partition behind them."""

import pytest
import torch
from tensordict import TensorDict
from verl.utils import seqlen_balancing

from batching.drawn import long_tail
from hydraulis.batching.adapters import verl_partition


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seqlen_balancing, "get_seqlen_balanced_partitions", None)
    assert "verl.utils.seqlen_balancing" in verl_partition.install()


@pytest.mark.parametrize("equal", [True, False])
def test_partitions_are_at_least_as_even_as_karmarkar_karp(equal: bool) -> None:  # noqa: FBT001
    weights = seqlen_balancing.calculate_workload(torch.tensor(long_tail(256), dtype=torch.long)).tolist()
    ours = seqlen_balancing.get_seqlen_balanced_partitions(weights, 8, equal)
    theirs = seqlen_balancing.karmarkar_karp(weights, 8, equal)
    heaviest = [max(sum(weights[i] for i in part) for part in parts) for parts in (ours, theirs)]
    assert heaviest[0] <= 1.001 * heaviest[1]


@pytest.mark.parametrize("group", [1, 2])
def test_micro_batches_keep_the_cap_and_have_every_sample(group: int) -> None:
    lengths = torch.tensor(long_tail(64, longest=200), dtype=torch.long)
    mask = (torch.arange(200) < lengths[:, None]).long()
    batch = TensorDict({"input_ids": torch.arange(64)[:, None].expand(64, 200), "attention_mask": mask}, [64])
    parts, indices = seqlen_balancing.rearrange_micro_batches(batch, 500, force_group_size=group)
    assert sorted(i for part in indices for i in part) == list(range(64))
    assert all(int(part["attention_mask"].sum()) <= 500 for part in parts)
    assert all(first + 1 in part for part in indices for first in part if group == 2 and first % 2 == 0)


def test_groups_stay_together() -> None:
    lengths = long_tail(64, longest=200).tolist()
    owners = [index // 4 for index in range(64)]
    parts = seqlen_balancing.get_group_balanced_partitions(lengths, owners, 4)
    assert sorted(i for part in parts for i in part) == list(range(64))
    assert all(len({owners[i] for i in part}) == 4 for part in parts)
