"""The model's attention: differentiable, checked, on the first kernel that fits."""

import pytest
import torch
from torch import Tensor

from helpers import refused
from hydraulis.model.attention.kernel import Attended, AttentionMask, Heads, Segments
from hydraulis.model.attention.plain import PlainAttention
from hydraulis.model.attention.varlen import varlen_attention
from model.attention.reference import HEAD_DIM, expected_gradients, mask_of, masked_softmax, random_heads

LENGTHS = [5, 1, 2]
MASK = mask_of(LENGTHS, LENGTHS, causal=True)
SEGMENTS = Segments.from_lengths(LENGTHS, "cpu")


def attend(heads: Heads) -> Tensor:
    return varlen_attention(*heads, SEGMENTS)


def test_varlen_attention_is_causal_attention_with_its_gradients() -> None:
    heads = Heads(*(x.requires_grad_() for x in random_heads(MASK, 4, 2)))
    o_TND = attend(heads)
    torch.testing.assert_close(o_TND, masked_softmax(heads, MASK)[0], rtol=1e-12, atol=1e-12)
    do_TND = torch.randn_like(o_TND)
    gradients = Heads(*torch.autograd.grad(o_TND, heads, do_TND))
    torch.testing.assert_close(gradients, expected_gradients(heads, MASK, do_TND), rtol=1e-12, atol=1e-12)


def test_the_output_gradient_may_have_any_strides() -> None:
    heads = Heads(*(x.requires_grad_() for x in random_heads(MASK, 4, 2)))
    do_TND = torch.randn(HEAD_DIM, 4, 8, dtype=torch.float64).permute(2, 1, 0)
    gradients = Heads(*torch.autograd.grad(attend(heads), heads, do_TND))
    torch.testing.assert_close(gradients, expected_gradients(heads, MASK, do_TND), rtol=1e-12, atol=1e-12)


def test_heads_may_be_views_of_one_tensor() -> None:
    heads = Heads(*torch.split(torch.randn(8, 8, HEAD_DIM, dtype=torch.float64), [4, 2, 2], dim=1))
    torch.testing.assert_close(attend(heads), masked_softmax(heads, MASK)[0], rtol=1e-12, atol=1e-12)


def test_a_kernel_that_does_not_fit_is_refused_with_the_reason() -> None:
    heads = random_heads(MASK, 2, 2)
    kinds = (
        ("flash-attn", ("2.7", "runs on cuda only")),
        ("flash-attn-4", ("not installed", "runs on cuda only")),
        ("torch-flash", ("cuda",)),
    )
    for kind, reasons in kinds:
        with refused("attention_unsupported", "float64", HEAD_DIM, "cpu", *reasons):
            varlen_attention(*heads, SEGMENTS, kind)  # type: ignore[arg-type]


def test_the_requested_kernel_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []
    forward = PlainAttention.forward

    def noted(kernel: PlainAttention, heads: Heads, mask: AttentionMask) -> Attended:
        used.append(kernel.kind)
        return forward(kernel, heads, mask)

    monkeypatch.setattr(PlainAttention, "forward", noted)
    heads = random_heads(MASK, 2, 2)
    varlen_attention(*heads, SEGMENTS)
    assert not used
    o_TND = varlen_attention(*heads, SEGMENTS, "plain")
    assert used == ["plain"]
    torch.testing.assert_close(o_TND, masked_softmax(heads, MASK)[0], rtol=1e-12, atol=1e-12)


def test_tokens_and_segments_must_agree() -> None:
    heads = random_heads(MASK, 2, 2)
    with refused("micro_batch_invalid", "q_TND", 7, 8):
        attend(heads._replace(q_TND=heads.q_TND[1:]))


def test_a_strided_head_dim_is_refused() -> None:
    strided = torch.randn(8, HEAD_DIM, 2).transpose(1, 2)
    with refused("micro_batch_invalid", "stride 2"):
        attend(Heads(strided, strided, strided))
