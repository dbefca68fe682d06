"""Ring attention with its ranks run one after another, which also fits one CUDA device, and its merge."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from devices import on_cuda
from hydraulis.model.attention.kernel import Attended, Heads
from hydraulis.model.attention.varlen import varlen_attention
from hydraulis.model.sequences import PackedSequences
from hydraulis.parallel.context import ring
from hydraulis.parallel.context.context_parallel import ContextParallel
from hydraulis.parallel.context.ring import merge_, widened
from model.attention.reference import mask_of, masked_softmax, random_heads

CP = 4
LENGTHS = [1, 300, 2, 1, 7, 77]
HEAD_DIM = 64


class FakeGroup:
    """A process group with a rank and a size, the only properties that splitting tokens needs."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return CP


class ReceivedZeros:
    """A transfer that receives zero gradients, so that a rank sends only its own part."""

    def __init__(self, shape: torch.Tensor) -> None:
        self._zeros = torch.zeros_like(shape)

    def wait(self) -> Tensor:
        return self._zeros


@pytest.mark.parametrize(
    ("device", "dtype", "tolerance"),
    [
        pytest.param("cpu", torch.float64, 1e-11),
        pytest.param("cuda", torch.float64, 1e-11, marks=on_cuda),
        pytest.param("cuda", torch.float32, 1e-4, marks=on_cuda),
        pytest.param("cuda", torch.bfloat16, 3e-2, marks=on_cuda),
    ],
)
def test_the_steps_of_all_ranks_equal_attention_of_one_rank(
    monkeypatch: pytest.MonkeyPatch, device: str, dtype: torch.dtype, tolerance: float
) -> None:
    whole = PackedSequences.from_lengths(LENGTHS, device)
    shape = (whole.num_tokens, HEAD_DIM)
    q_TND, do_TND = (torch.randn(shape[0], 4, shape[1], dtype=dtype, device=device) for _ in range(2))
    k_TKD, v_TKD = (torch.randn(shape[0], 2, shape[1], dtype=dtype, device=device) for _ in range(2))
    shares: list[tuple[Tensor, Any]] = [
        ContextParallel("ring", FakeGroup(rank)).share(whole)  # type: ignore[arg-type]
        for rank in range(CP)
    ]

    def around(_k_tKD: Tensor, _v_tKD: Tensor, sequences: Any) -> Iterator[Tensor]:
        for step in range(CP):
            index_t, _ = shares[(sequences.group.rank() - step) % CP]
            yield torch.stack((k_TKD[index_t], v_TKD[index_t]))

    def start_transfer(outgoing: Tensor, _incoming: Tensor, _group: FakeGroup) -> ReceivedZeros:
        sent.append(outgoing.clone())
        return ReceivedZeros(outgoing)

    monkeypatch.setattr(ring, "_around", around)
    monkeypatch.setattr(ring, "_start_transfer", start_transfer)
    o_TND, dq_TND = torch.zeros_like(q_TND), torch.zeros_like(q_TND)
    dkey_value = torch.zeros(2, *k_TKD.shape, dtype=torch.float64, device=device)
    for rank, (index_t, sequences) in enumerate(shares):
        sent: list[Tensor] = []
        own = Heads(*(x[index_t].requires_grad_() for x in (q_TND, k_TKD, v_TKD)))
        o_tND = sequences.attend(*own)
        dq_TND[index_t] = torch.autograd.grad(o_tND, own, do_TND[index_t])[0]
        o_TND[index_t] = o_tND.detach()
        for step, part in enumerate(sent):
            dkey_value[:, shares[(rank - step) % CP][0]] += part
    exact = Heads(*(x.cpu().double().requires_grad_() for x in (q_TND, k_TKD, v_TKD)))
    expected = varlen_attention(*exact, PackedSequences.from_lengths(LENGTHS, "cpu").segments)
    gradients = torch.autograd.grad(expected, exact, do_TND.cpu().double())
    for part, twin in zip((o_TND, dq_TND, *dkey_value), (expected, *gradients), strict=True):
        torch.testing.assert_close(part.cpu().double(), twin, rtol=3 * tolerance, atol=3 * tolerance)


def test_blocks_of_keys_merge_to_attention_over_all_of_them() -> None:
    whole = mask_of([5], [9], causal=False)
    heads = random_heads(whole, 4, 2)
    parts = [slice(0, 4), slice(4, 5), slice(5, 9)]
    masks = [mask_of([5], [part.stop - part.start], causal=False) for part in parts]
    first, *others = (
        Attended(*masked_softmax(Heads(heads.q_TND, heads.k_SKD[part], heads.v_SKD[part]), mask))
        for part, mask in zip(parts, masks, strict=True)
    )
    total = widened(first)
    for other in others:
        merge_(total, other, None)
    torch.testing.assert_close(tuple(total), tuple(masked_softmax(heads, whole)), rtol=1e-12, atol=1e-12)


def test_a_block_without_keys_changes_nothing() -> None:
    mask = mask_of([3], [2], causal=False)
    total = widened(Attended(*masked_softmax(random_heads(mask, 2, 2), mask)))
    before = [x.clone() for x in total]
    nothing = Attended(torch.zeros_like(total.o_TND), torch.full_like(total.log_sum_exp_TN, -torch.inf))
    merge_(total, nothing, None)
    assert all(torch.equal(one, other) for one, other in zip(total, before, strict=True))


def test_only_the_rows_named_are_merged_in_float32() -> None:
    total = widened(Attended(torch.ones(3, 1, 2, dtype=torch.bfloat16), torch.zeros(3, 1)))
    part = Attended(torch.full((1, 1, 2), 4.0, dtype=torch.bfloat16), torch.full((1, 1), 0.5).log())
    merge_(total, part, torch.tensor([1]))
    assert total.o_TND.dtype == torch.float32
    torch.testing.assert_close(total.o_TND[:, 0, 0], torch.tensor([1.0, 2.0, 1.0]))
    torch.testing.assert_close(total.log_sum_exp_TN[:, 0], torch.tensor([1.0, 1.5, 1.0]).log())
