"""A kernel that computes one part wrongly is refused; the CPU's kernels are not."""

import math

import pytest
import torch
from torch import Tensor

from helpers import refused
from hydraulis.model.attention.cpu_flash import CpuFlash
from hydraulis.model.attention.kernel import Attended, AttentionKernel, AttentionMask, Heads
from hydraulis.model.attention.kernel_check import check_kernel
from hydraulis.model.attention.plain import PlainAttention


class WrongSegment(PlainAttention):
    """Plain attention with one part shifted by a token behind the first segment."""

    def __init__(self, part: str, *, causal: bool) -> None:
        super().__init__()
        self.part, self.causal = part, causal

    def forward(self, heads: Heads, mask: AttentionMask) -> Attended:
        attended = super().forward(heads, mask)
        if self.part == "outputs" and mask.causal == self.causal:
            attended = attended._replace(o_TND=shifted(attended.o_TND, mask.queries.lengths[0]))
        return attended

    def backward(self, do_TND: Tensor, heads: Heads, attended: Attended, mask: AttentionMask) -> Heads:
        gradients = super().backward(do_TND, heads, attended, mask)
        names = {"queries": "q_TND", "keys": "k_SKD", "values": "v_SKD"}
        name = names.get(self.part.rpartition(" ")[2])
        if name is not None and mask.causal == self.causal:
            gradients = gradients._replace(
                **{name: shifted(getattr(gradients, name), mask.queries.lengths[0])}
            )
        return gradients


def shifted(x_TND: Tensor, first: int) -> Tensor:
    return torch.cat((x_TND[:first], x_TND[first:].roll(1, 0)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("counts", [(4, 4), (8, 2)])
@pytest.mark.parametrize("kernel", [CpuFlash(), PlainAttention(block_scores=1000)])
def test_a_right_kernel_is_accepted(
    kernel: AttentionKernel, counts: tuple[int, int], dtype: torch.dtype
) -> None:
    check_kernel(kernel, *counts, torch.empty(0, 1, 16, dtype=dtype), between_segments=True)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "part", ["outputs", "gradients of queries", "gradients of keys", "gradients of values"]
)
def test_a_kernel_with_one_wrong_part_is_refused(part: str, *, causal: bool) -> None:
    like_TND = torch.empty(0, 1, 16, dtype=torch.bfloat16)
    with refused("attention_wrong", "plain attention", f"other {part}", 16, "torch-flash"):
        check_kernel(WrongSegment(part, causal=causal), 8, 2, like_TND, between_segments=True)


def test_only_context_ranks_attend_between_segments() -> None:
    like_TND = torch.empty(0, 1, 16, dtype=torch.float64)
    check_kernel(WrongSegment("outputs", causal=False), 2, 2, like_TND, between_segments=False)


def test_a_kernel_that_returns_no_numbers_is_refused() -> None:
    class NoNumbers(PlainAttention):
        def forward(self, heads: Heads, mask: AttentionMask) -> Attended:
            attended = super().forward(heads, mask)
            return attended._replace(o_TND=torch.full_like(attended.o_TND, math.nan))

    with refused("attention_wrong", "outputs"):
        check_kernel(NoNumbers(), 2, 2, torch.empty(0, 1, 8), between_segments=False)


def test_the_check_leaves_torchs_random_numbers_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    check_kernel(CpuFlash(), 2, 1, torch.empty(0, 1, 16), between_segments=True)
    assert torch.equal(torch.rand(4), expected)
