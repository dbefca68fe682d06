"""The reference of every attention kernel: one masked softmax over all T x S pairs, with autograd."""

import math

import torch
from torch import Tensor

from hydraulis.model.attention.kernel import AttentionMask, Heads, Segments

HEAD_DIM = 16


def masked_softmax(heads: Heads, mask: AttentionMask) -> tuple[Tensor, Tensor]:
    """Return o_TND, 0 for a query without visible keys, and the log-sum-exp, in the heads' dtype."""
    q_TND, k_SKD, v_SKD = heads
    group = q_TND.shape[1] // k_SKD.shape[1]
    k_SND, v_SND = k_SKD.repeat_interleave(group, dim=1), v_SKD.repeat_interleave(group, dim=1)
    score_NTS = torch.einsum("tnd,snd->nts", q_TND, k_SND) / math.sqrt(q_TND.shape[-1])
    score_NTS = score_NTS.masked_fill(~visible(mask).to(q_TND.device), -math.inf)
    weight_NTS = score_NTS.softmax(-1).nan_to_num(0.0)
    return torch.einsum("nts,snd->tnd", weight_NTS, v_SND), score_NTS.logsumexp(-1).T


def visible(mask: AttentionMask) -> Tensor:
    """Return for each query and key whether the mask makes the key visible, bool [T, S]."""

    def places(segments: Segments) -> list[tuple[int, int]]:
        return [(i, place) for i, length in enumerate(segments.lengths) for place in range(length)]

    return torch.tensor(
        [
            [own == other and (not mask.causal or key <= query) for other, key in places(mask.keys)]
            for own, query in places(mask.queries)
        ],
        dtype=torch.bool,
    ).reshape(mask.queries.num_tokens, mask.keys.num_tokens)


def random_heads(
    mask: AttentionMask,
    num_heads: int,
    num_key_value_heads: int,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
    head_dim: int = HEAD_DIM,
) -> Heads:
    def draw(num_tokens: int, heads: int) -> Tensor:
        return torch.randn(num_tokens, heads, head_dim, dtype=dtype, device=device)

    num_queries, num_keys = mask.queries.num_tokens, mask.keys.num_tokens
    return Heads(
        draw(num_queries, num_heads), draw(num_keys, num_key_value_heads), draw(num_keys, num_key_value_heads)
    )


def mask_of(queries: list[int], keys: list[int], *, causal: bool, device: str = "cpu") -> AttentionMask:
    return AttentionMask(
        Segments.from_lengths(queries, device), Segments.from_lengths(keys, device), causal=causal
    )


def expected_gradients(heads: Heads, mask: AttentionMask, do_TND: Tensor) -> Heads:
    """Return the gradients of the reference by autograd."""
    leaves = Heads(*(x.detach().clone().requires_grad_() for x in heads))
    o_TND, _ = masked_softmax(leaves, mask)
    return Heads(*torch.autograd.grad(o_TND, leaves, do_TND))
