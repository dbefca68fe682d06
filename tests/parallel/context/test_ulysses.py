"""The split of heads, and one rank of Ulysses on a CUDA device with a fake group that sends nothing."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hydraulis.model.sequences import PackedSequences
from hydraulis.parallel.context.context_parallel import ContextParallel
from hydraulis.parallel.context.ulysses import HeadShare, split_heads

LENGTHS = [100, 1, 43]
HEAD_DIM = 64


class FirstOfThree:
    """The first rank of a process group of three, which is all that splitting tokens needs."""

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
# Key/value heads divided among the ranks, one for all, and heads where a rank needs one twice.
@pytest.mark.parametrize("num_heads", [(6, 3), (6, 1), (8, 4)])
def test_the_host_waits_for_nothing(
    monkeypatch: pytest.MonkeyPatch, num_heads: tuple[int, int], dtype: torch.dtype
) -> None:
    def all_to_all(incoming: Tensor, _outgoing: Tensor, *_sizes: Any, group: FirstOfThree) -> None:
        assert group.size() == 3
        incoming.zero_()

    monkeypatch.setattr(dist, "all_to_all_single", all_to_all)
    whole = PackedSequences.from_lengths(LENGTHS, "cuda")
    group: Any = FirstOfThree()
    index_t, sequences = ContextParallel("ulysses", group).share(whole)
    q_tND, k_tKD, v_tKD = (
        torch.randn(len(index_t), heads, HEAD_DIM, dtype=dtype, device="cuda", requires_grad=True)
        for heads in (*num_heads, num_heads[1])
    )

    def both_ways() -> tuple[Tensor, ...]:
        o_tND = sequences.attend(q_tND, k_tKD, v_tKD)
        return torch.autograd.grad(o_tND, (q_tND, k_tKD, v_tKD), torch.ones_like(o_tND))

    # A first run, because the host may wait for objects made on first use.
    both_ways()
    torch.cuda.set_sync_debug_mode("error")
    try:
        gradients = both_ways()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [x.shape for x in gradients] == [x.shape for x in (q_tND, k_tKD, v_tKD)]


@pytest.mark.parametrize(
    ("num_heads", "cp", "expected"),
    [
        ((8, 4), 2, [(0, 4, (0, 1)), (4, 8, (2, 3))]),
        # More ranks than key/value heads: each goes to two.
        ((8, 2), 4, [(0, 2, (0,)), (2, 4, (0,)), (4, 6, (1,)), (6, 8, (1,))]),
        # Groups are cut: a key/value head for each query head.
        ((8, 4), 3, [(0, 2, (0,)), (2, 5, (1, 1, 2)), (5, 8, (2, 3, 3))]),
    ],
)
def test_heads_are_split_evenly(
    num_heads: tuple[int, int], cp: int, expected: list[tuple[int, int, tuple[int, ...]]]
) -> None:
    shares = split_heads(*num_heads, cp)
    assert [(share.queries.start, share.queries.stop, share.keys) for share in shares] == expected


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 12))
def test_every_query_head_has_its_own_key_head(num_keys: int, group: int, cp: int) -> None:
    num_queries = num_keys * group
    if cp > num_queries:
        return
    shares = split_heads(num_queries, num_keys, cp)
    assert [query for share in shares for query in share.queries] == list(range(num_queries))
    sizes = [len(share.queries) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    for share in shares:
        run, rest = divmod(len(share.queries), len(share.keys))
        assert rest == 0
        for place, query in enumerate(share.queries):
            assert share.keys[place // run] == query // group
        assert [key for run in share.key_runs for key in run] == list(share.keys)


def test_a_head_that_two_ranks_need_begins_a_run() -> None:
    assert HeadShare(range(4), (0, 1, 2, 3)).key_runs == [range(4)]
    assert HeadShare(range(2, 5), (1, 1, 2)).key_runs == [range(1, 2), range(1, 3)]
