"""The CPU kernels against the reference: output, log-sum-exp, gradients, blocks of keys."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers import refused
from hydraulis.model.attention.cpu_flash import CpuFlash
from hydraulis.model.attention.kernel import Attended, AttentionKernel, AttentionMask, Heads, check_heads
from hydraulis.model.attention.plain import PlainAttention
from model.attention.reference import expected_gradients, mask_of, masked_softmax, random_heads

# Limits that cut segments into blocks of one or a few queries.
KERNELS: list[AttentionKernel] = [CpuFlash(), PlainAttention(), PlainAttention(block_scores=100)]
any_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=["flash", "plain", "plain in blocks"])


def assert_equals_the_twin(kernel: AttentionKernel, mask: AttentionMask, num_heads: tuple[int, int]) -> None:
    heads = random_heads(mask, *num_heads)
    attended = kernel.forward(heads, mask)
    for value, expected in zip(attended, masked_softmax(heads, mask), strict=True):
        assert value.is_contiguous()
        torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    do_TND = torch.randn_like(attended.o_TND)
    gradients = kernel.backward(do_TND, heads, attended, mask)
    torch.testing.assert_close(gradients, expected_gradients(heads, mask, do_TND), rtol=1e-11, atol=1e-12)


@any_kernel
@pytest.mark.parametrize("num_heads", [(1, 1), (4, 4), (6, 2), (4, 1)])
@pytest.mark.parametrize("lengths", [[1], [1, 1, 1], [13, 1, 7, 7], [130, 67]])
def test_causal_self_attention_equals_the_reference(
    kernel: AttentionKernel, lengths: list[int], num_heads: tuple[int, int]
) -> None:
    assert_equals_the_twin(kernel, mask_of(lengths, lengths, causal=True), num_heads)


@any_kernel
@settings(max_examples=30)
@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=6))
def test_causal_self_attention_of_any_lengths_equals_the_reference(
    kernel: AttentionKernel, lengths: list[int]
) -> None:
    assert_equals_the_twin(kernel, mask_of(lengths, lengths, causal=True), (4, 2))


@any_kernel
@settings(max_examples=30)
@given(lengths=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=6))
def test_whole_blocks_of_keys_equal_the_reference(
    kernel: AttentionKernel, lengths: list[tuple[int, int]]
) -> None:
    queries, keys = ([pair[side] for pair in lengths] for side in (0, 1))
    assert_equals_the_twin(kernel, mask_of(queries, keys, causal=False), (4, 2))


@any_kernel
def test_a_query_without_keys_gives_zero_and_minus_infinity(kernel: AttentionKernel) -> None:
    mask = mask_of([2, 3], [0, 4], causal=False)
    o_TND, log_sum_exp_TN = kernel.forward(random_heads(mask, 2, 1), mask)
    assert not o_TND[:2].any()
    assert log_sum_exp_TN[:2].eq(-torch.inf).all()
    assert log_sum_exp_TN[2:].isfinite().all()


def merge(first: Attended, second: Attended) -> Attended:
    log_sum_exp_TN = torch.logaddexp(first.log_sum_exp_TN, second.log_sum_exp_TN)
    parts = [(part.log_sum_exp_TN - log_sum_exp_TN).exp()[..., None] * part.o_TND for part in (first, second)]
    return Attended(parts[0] + parts[1], log_sum_exp_TN)


@any_kernel
def test_blocks_of_keys_put_together_equal_all_keys_at_once(kernel: AttentionKernel) -> None:
    """Attend from each second half to the first half as a whole block, and to itself causally."""
    halves, wholes = [5, 1, 8], [10, 2, 16]
    own, other = mask_of(halves, halves, causal=True), mask_of(halves, halves, causal=False)
    whole = mask_of(wholes, wholes, causal=True)
    heads = random_heads(whole, 4, 2)
    is_late = torch.cat([torch.arange(length) >= length // 2 for length in wholes])
    late, early = (Heads(*(x[rows] for x in heads)) for rows in (is_late, ~is_late))
    crossing = Heads(late.q_TND, *early[1:])

    merged = merge(kernel.forward(late, own), kernel.forward(crossing, other))
    expected = kernel.forward(heads, whole)
    torch.testing.assert_close(merged, Attended(*(x[is_late] for x in expected)), rtol=1e-12, atol=1e-12)

    do_TND = torch.randn_like(heads.q_TND).masked_fill(~is_late[:, None, None], 0)
    expected_gradient = kernel.backward(do_TND, heads, expected, whole)
    of_own = kernel.backward(do_TND[is_late], late, merged, own)
    of_other = kernel.backward(do_TND[is_late], crossing, merged, other)
    pairs = [(of_own.q_TND + of_other.q_TND, expected_gradient.q_TND[is_late])]
    for mine, others, both in zip(of_own[1:], of_other[1:], expected_gradient[1:], strict=True):
        pairs += [(mine, both[is_late]), (others, both[~is_late])]
    for value, whole_value in pairs:
        torch.testing.assert_close(value, whole_value, rtol=1e-11, atol=1e-12)


@any_kernel
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_lower_precisions_are_as_close_as_their_rounding_allows(
    kernel: AttentionKernel, dtype: torch.dtype, tolerance: float
) -> None:
    mask = mask_of([9, 30], [9, 30], causal=True)
    heads = random_heads(mask, 4, 2, dtype)
    attended = kernel.forward(heads, mask)
    assert (attended.o_TND.dtype, attended.log_sum_exp_TN.dtype) == (dtype, torch.float32)
    exact = Heads(*(x.double() for x in heads))
    for value, expected in zip(attended, masked_softmax(exact, mask), strict=True):
        torch.testing.assert_close(value.double(), expected, rtol=tolerance, atol=tolerance)
    do_TND = torch.ones_like(attended.o_TND)
    gradients = kernel.backward(do_TND, heads, attended, mask)
    expected_gradient = expected_gradients(exact, mask, do_TND.double())
    for gradient, expected in zip(gradients, expected_gradient, strict=True):
        assert gradient.dtype == dtype
        torch.testing.assert_close(gradient.double(), expected, rtol=3 * tolerance, atol=3 * tolerance)


@pytest.mark.parametrize(
    ("queries", "keys", "causal"), [([3, 4], [7], False), ([3], [4], True), ([3, 4], [4, 3], True)]
)
def test_ambiguous_masks_are_refused(queries: list[int], keys: list[int], *, causal: bool) -> None:
    with refused("micro_batch_invalid", f"causal = {causal}"):
        mask_of(queries, keys, causal=causal)


def test_keys_must_be_those_of_the_mask() -> None:
    mask = mask_of([3], [4], causal=False)
    heads = random_heads(mask, 2, 1)
    check_heads(heads, mask)
    wrong: Tensor = heads.k_SKD[:3]
    with refused("micro_batch_invalid", "k_SKD", 3, 4):
        check_heads(heads._replace(k_SKD=wrong), mask)
