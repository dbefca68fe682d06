"""The steps of ring attention, the ranks one after another: on one CUDA device too, which takes one rank."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from hydraulis.model.attention.kernel import Heads
from hydraulis.model.attention.varlen import varlen_attention
from hydraulis.model.packed import PackedSequences
from hydraulis.parallel.context import ring
from hydraulis.parallel.context.context_parallel import ContextParallel

on_cuda = (
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
)
CP = 4
LENGTHS = [1, 300, 2, 1, 7, 77]
HEAD_DIM = 64


class Place:
    """A rank's place in a group, which is all that sharing tokens out asks for."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return CP


class Arrived:
    """A message without gradients of other ranks: so what a rank sends on is its own part."""

    def __init__(self, shape: torch.Tensor) -> None:
        self._nothing = torch.zeros_like(shape)

    def wait(self) -> Tensor:
        return self._nothing


@pytest.mark.parametrize(
    ("device", "dtype", "tolerance"),
    [
        pytest.param("cpu", torch.float64, 1e-11),
        pytest.param("cuda", torch.float64, 1e-11, marks=on_cuda),
        pytest.param("cuda", torch.float32, 1e-4, marks=on_cuda),
        pytest.param("cuda", torch.bfloat16, 3e-2, marks=on_cuda),
    ],
)
def test_the_steps_of_all_ranks_are_attention_of_one(
    monkeypatch: pytest.MonkeyPatch, device: str, dtype: torch.dtype, tolerance: float
) -> None:
    whole = PackedSequences.from_lengths(LENGTHS, device)
    shape = (whole.num_tokens, HEAD_DIM)
    q_TND, do_TND = (torch.randn(shape[0], 4, shape[1], dtype=dtype, device=device) for _ in range(2))
    k_TKD, v_TKD = (torch.randn(shape[0], 2, shape[1], dtype=dtype, device=device) for _ in range(2))
    shares: list[tuple[Tensor, Any]] = [
        ContextParallel("ring", Place(rank)).share(whole)  # type: ignore[arg-type]
        for rank in range(CP)
    ]

    def around(_own: Tensor, group: Place) -> Iterator[Tensor]:
        for step in range(CP):
            index_t, _ = shares[(group.rank() - step) % CP]
            yield torch.stack((k_TKD[index_t], v_TKD[index_t]))

    def pass_on(outgoing: Tensor, _group: Place) -> Arrived:
        sent.append(outgoing.clone())
        return Arrived(outgoing)

    monkeypatch.setattr(ring, "_around", around)
    monkeypatch.setattr(ring, "_pass_on", pass_on)
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
