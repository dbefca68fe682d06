import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hydraulis.errors import InvalidInputError
from hydraulis.model.attention import varlen_attention
from hydraulis.model.packed import PackedSequences

HEAD_DIM = 6


def plain_attention(q_TND: Tensor, k_TKD: Tensor, v_TKD: Tensor, sequences: PackedSequences) -> Tensor:
    """The slow twin: one masked softmax over all T x T pairs."""
    group = q_TND.shape[1] // k_TKD.shape[1]
    k_TND, v_TND = k_TKD.repeat_interleave(group, dim=1), v_TKD.repeat_interleave(group, dim=1)
    segment = torch.arange(len(sequences.lengths)).repeat_interleave(torch.tensor(sequences.lengths))
    same_segment = segment[:, None] == segment[None, :]
    causal = torch.ones_like(same_segment).tril()
    score = torch.einsum("qnd,knd->nqk", q_TND, k_TND) / math.sqrt(q_TND.shape[-1])
    weight = score.masked_fill(~(same_segment & causal), -math.inf).softmax(-1)
    return torch.einsum("nqk,knd->qnd", weight, v_TND)


def random_heads(
    num_tokens: int, num_heads: int, num_key_value_heads: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    def draw(heads: int) -> Tensor:
        return torch.randn(num_tokens, heads, HEAD_DIM, dtype=dtype, requires_grad=True)

    return draw(num_heads), draw(num_key_value_heads), draw(num_key_value_heads)


def assert_same_with_gradients(lengths: list[int], num_heads: int, num_key_value_heads: int) -> None:
    sequences = PackedSequences.from_lengths(lengths, "cpu")
    inputs = random_heads(sequences.num_tokens, num_heads, num_key_value_heads)
    o_TND, expected = varlen_attention(*inputs, sequences), plain_attention(*inputs, sequences)
    torch.testing.assert_close(o_TND, expected, rtol=1e-12, atol=1e-12)
    do_TND = torch.randn_like(o_TND)
    grads = torch.autograd.grad(o_TND, inputs, do_TND)
    expected_grads = torch.autograd.grad(expected, inputs, do_TND)
    torch.testing.assert_close(grads, expected_grads, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("num_heads", "num_key_value_heads"), [(1, 1), (4, 4), (6, 2), (4, 1)])
@pytest.mark.parametrize("lengths", [[1], [1, 1, 1], [13, 1, 7, 7], [130, 67]])
def test_it_equals_a_masked_softmax(lengths: list[int], num_heads: int, num_key_value_heads: int) -> None:
    assert_same_with_gradients(lengths, num_heads, num_key_value_heads)


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_it_equals_a_masked_softmax_for_any_lengths(lengths: list[int]) -> None:
    assert_same_with_gradients(lengths, 4, 2)


def test_the_output_gradient_may_have_any_strides() -> None:
    sequences = PackedSequences.from_lengths([5, 2], "cpu")
    inputs = random_heads(7, 4, 2)
    do_TND = torch.randn(HEAD_DIM, 4, 7, dtype=torch.float64).permute(2, 1, 0)
    grads = torch.autograd.grad(varlen_attention(*inputs, sequences), inputs, do_TND)
    expected = torch.autograd.grad(plain_attention(*inputs, sequences), inputs, do_TND)
    torch.testing.assert_close(grads, expected, rtol=1e-12, atol=1e-12)


def test_heads_may_be_views_of_one_tensor() -> None:
    sequences = PackedSequences.from_lengths([5, 2], "cpu")
    q, k, v = torch.split(torch.randn(7, 8, HEAD_DIM, dtype=torch.float64), [4, 2, 2], dim=1)
    expected = plain_attention(q, k, v, sequences)
    torch.testing.assert_close(varlen_attention(q, k, v, sequences), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_lower_precisions(dtype: torch.dtype, tolerance: float) -> None:
    sequences = PackedSequences.from_lengths([9, 30], "cpu")
    inputs = random_heads(39, 4, 2, dtype)
    o_TND = varlen_attention(*inputs, sequences)
    assert o_TND.dtype == dtype
    q, k, v = (x.double() for x in inputs)
    expected = plain_attention(q, k, v, sequences)
    torch.testing.assert_close(o_TND.double(), expected, rtol=tolerance, atol=tolerance)
    grads = torch.autograd.grad(o_TND.sum(), inputs)
    expected_grads = torch.autograd.grad(expected.sum(), inputs)
    torch.testing.assert_close(grads, expected_grads, rtol=3 * tolerance, atol=3 * tolerance)


def test_another_device_is_refused_by_name() -> None:
    sequences = PackedSequences.from_lengths([3], "cpu")
    x_TND = torch.empty(3, 2, HEAD_DIM, device="meta")
    with pytest.raises(InvalidInputError, match="device meta") as caught:
        varlen_attention(x_TND, x_TND, x_TND, sequences)
    assert caught.value.code == "attention_device"


def test_tokens_and_segments_must_agree() -> None:
    sequences = PackedSequences.from_lengths([3], "cpu")
    with pytest.raises(InvalidInputError, match="q_TND holds 4 tokens, but its segments hold 3") as caught:
        varlen_attention(*random_heads(4, 2, 2), sequences)
    assert caught.value.code == "attention_shape"


def test_a_strided_head_dim_is_refused() -> None:
    sequences = PackedSequences.from_lengths([3], "cpu")
    strided = torch.randn(3, HEAD_DIM, 2).transpose(1, 2)
    with pytest.raises(InvalidInputError, match="stride 2 in its last dim"):
        varlen_attention(strided, strided, strided, sequences)
