"""What a rank does for Ulysses on a CUDA device; the place in its group is made up, and nothing is sent."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from devices import on_cuda
from hydraulis.model.packed import PackedSequences
from hydraulis.parallel.context.context_parallel import ContextParallel

pytestmark = [*on_cuda]
LENGTHS = [100, 1, 43]
HEAD_DIM = 64


class FirstOfThree:
    """A rank's place in a group, which is all that sharing tokens out asks for."""

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
# Key/value heads divided among the ranks, one for all, and heads of which a rank needs one twice.
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

    # Once before: what is made on first use may be waited for.
    both_ways()
    torch.cuda.set_sync_debug_mode("error")
    try:
        gradients = both_ways()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [x.shape for x in gradients] == [x.shape for x in (q_tND, k_tKD, v_tKD)]
