"""The head's chunked loss, whole and split over a tensor group, against torch's cross entropy."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from helpers import refused
from hydraulis.model.sequences import IGNORE_INDEX
from hydraulis.parallel import vocabulary
from hydraulis.parallel.vocabulary import MIN_CHUNK, VocabularyShare, num_chunks, vocab_parallel_loss
from parallel.vocabulary_workers import loss_and_gradients
from ranks import run_ranks
from small_model import token_loss

VOCABULARY, WIDTH = 37, 6
# Chunks of the least size; the last chunk is not full.
TOKENS = 2 * MIN_CHUNK + 44
WHOLE = VocabularyShare(VOCABULARY, 0, None)


def draw(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Draw hidden states, a head and targets; every seventh token has no target."""
    hidden_TH = torch.randn(TOKENS, WIDTH, dtype=dtype)
    target_T = torch.randint(VOCABULARY, (TOKENS,))
    target_T[::7] = IGNORE_INDEX
    return hidden_TH, torch.randn(VOCABULARY, WIDTH, dtype=dtype), target_T


def expected(
    hidden_TH: Tensor, weight_VH: Tensor, target_T: Tensor, denominator: int
) -> tuple[Tensor, Tensor, Tensor]:
    hidden_TH, weight_VH = hidden_TH.clone().requires_grad_(), weight_VH.clone().requires_grad_()
    loss = token_loss(hidden_TH @ weight_VH.T, target_T, denominator)
    (3.0 * loss).backward()
    assert hidden_TH.grad is not None
    assert weight_VH.grad is not None
    return loss.detach(), hidden_TH.grad, weight_VH.grad


def single(
    hidden_TH: Tensor, weight_VH: Tensor, target_T: Tensor, denominator: int
) -> tuple[Tensor, Tensor, Tensor]:
    hidden_TH, weight_VH = hidden_TH.clone().requires_grad_(), weight_VH.clone().requires_grad_()
    loss = vocab_parallel_loss(hidden_TH, weight_VH, target_T, denominator, WHOLE)
    (3.0 * loss).backward()
    assert hidden_TH.grad is not None
    assert weight_VH.grad is not None
    return loss.detach(), hidden_TH.grad, weight_VH.grad


def test_the_loss_is_cross_entropy_with_its_gradients() -> None:
    inputs = draw()
    torch.testing.assert_close(single(*inputs, 11), expected(*inputs, 11), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("scale", [1.0, 1000.0])
@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.devices
def test_a_split_vocabulary_gives_the_loss_of_one_rank(world_size: int, scale: float) -> None:
    # Large logits: without the common maximum their exponentials overflow.
    hidden_TH, weight_VH, target_T = draw()
    inputs = (scale * hidden_TH, weight_VH, target_T)
    loss, dhidden_TH, dweight_VH = expected(*inputs, 11)
    results = run_ranks(world_size, loss_and_gradients, *inputs, 11)
    for rank_loss, _, _ in results:
        torch.testing.assert_close(rank_loss, loss, rtol=1e-12, atol=1e-12)
    assert len({rank_loss.item() for rank_loss, _, _ in results}) == 1
    torch.testing.assert_close(torch.cat([x for _, x, _ in results]), dhidden_TH, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        torch.cat([x for _, _, x in results]), dweight_VH, rtol=1e-12, atol=1e-12 * scale
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_backward_adds_the_heads_gradient_directly(dtype: torch.dtype) -> None:
    hidden_TH, weight_VH, target_T = draw(dtype)
    weights = [nn.Parameter(weight_VH) for _ in range(2)]
    ran: list[str] = []
    for weight, share in zip(weights, (WHOLE, replace(WHOLE, adds_to_gradient=True)), strict=True):
        weight.grad_dtype = torch.promote_types(dtype, torch.float32)
        weight.grad = torch.ones_like(weight, dtype=weight.grad_dtype)
        weight.register_post_accumulate_grad_hook(lambda _: ran.append("hook"))
        for _ in range(2):
            (3.0 * vocab_parallel_loss(hidden_TH, weight, target_T, 11, share)).backward()
    returned, added = (weight.grad for weight in weights)
    assert returned is not None
    assert added is not None
    torch.testing.assert_close(added, returned, rtol=1e-6, atol=1e-6)
    assert float((added - 1).norm()) > 1
    assert ran == 4 * ["hook"]


def test_micro_batches_add_up_to_the_batch() -> None:
    hidden_TH, weight_VH, target_T = draw()
    loss, dhidden_TH, dweight_VH = single(hidden_TH, weight_VH, target_T, 200)
    parts = [
        single(hidden_TH[cut], weight_VH, target_T[cut], 200) for cut in (slice(0, 90), slice(90, TOKENS))
    ]
    torch.testing.assert_close(parts[0][0] + parts[1][0], loss, rtol=1e-13, atol=0)
    torch.testing.assert_close(torch.cat((parts[0][1], parts[1][1])), dhidden_TH, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(parts[0][2] + parts[1][2], dweight_VH, rtol=1e-12, atol=1e-13)


def test_a_micro_batch_without_targets_gives_zero_and_zero_gradients() -> None:
    hidden_TH, weight_VH, target_T = draw(torch.float32)
    results = single(hidden_TH, weight_VH, torch.full_like(target_T, IGNORE_INDEX), 8)
    assert not any(x.any() for x in results)


def test_bfloat16_gives_a_float32_loss_and_gradients_as_good_as_its_logits() -> None:
    hidden_TH, weight_VH, target_T = draw(torch.bfloat16)
    loss, dhidden_TH, dweight_VH = single(hidden_TH, weight_VH, target_T, 200)
    assert (loss.dtype, dhidden_TH.dtype, dweight_VH.dtype) == (torch.float32, *2 * [torch.bfloat16])
    exact = expected(hidden_TH.double(), weight_VH.double(), target_T, 200)
    torch.testing.assert_close(loss.double(), exact[0], rtol=5e-3, atol=0)
    for gradient, value in zip((dhidden_TH, dweight_VH), exact[1:], strict=True):
        assert torch.linalg.norm(gradient.double() - value) <= 1e-2 * torch.linalg.norm(value)


class Products(TorchDispatchMode):
    """Counts the matrix products."""

    number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm_)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("trained", [(True, False), (False, True), (True, True)])
def test_frozen_inputs_have_no_gradient_computed_or_saved(
    trained: tuple[bool, bool], dtype: torch.dtype
) -> None:
    hidden_TH, weight_VH, target_T = draw(dtype)
    loss, *gradients = single(hidden_TH, weight_VH, target_T, 11)
    inputs = [
        x.clone().requires_grad_(needs) for x, needs in zip((hidden_TH, weight_VH), trained, strict=True)
    ]
    saved: list[torch.Size] = []

    def save(x: Tensor) -> Tensor:
        saved.append(x.shape)
        return x

    with torch.autograd.graph.saved_tensors_hooks(save, lambda x: x), Products() as products:  # type: ignore[no-untyped-call]
        own = vocab_parallel_loss(inputs[0], inputs[1], target_T, 11, WHOLE)
    assert saved == [x.shape for x in inputs if x.requires_grad]
    # Each of the three chunks: the logits, and one gradient per trained input.
    assert products.number == 3 * (1 + sum(trained))
    assert torch.equal(own, loss)
    (3.0 * own).backward()
    for x, gradient in zip(inputs, gradients, strict=True):
        assert torch.equal(x.grad, gradient) if x.grad is not None else not x.requires_grad


class LargestTensor(TorchDispatchMode):
    """Records the size of the largest result of any operation."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.elements = max([self.elements, *(x.numel() for x in tensors(result))])
        return result


def tensors(result: Any) -> Iterator[Tensor]:
    for x in result if isinstance(result, (tuple, list)) else [result]:
        if isinstance(x, Tensor):
            yield x


@pytest.mark.parametrize(
    ("tokens", "width", "vocabulary"), [(512, 8, 2000), (512, 64, 100), (2048, 64, 1000)]
)
def test_whole_logits_are_never_stored(tokens: int, width: int, vocabulary: int) -> None:
    hidden_TH = torch.randn(tokens, width, requires_grad=True)
    weight_VH = torch.randn(vocabulary, width, requires_grad=True)
    with LargestTensor() as largest:  # type: ignore[no-untyped-call]
        target_T = torch.zeros(tokens, dtype=torch.int64)
        share = VocabularyShare(vocabulary, 0, None)
        vocab_parallel_loss(hidden_TH, weight_VH, target_T, 5, share).backward()
    limit = max(hidden_TH.numel(), weight_VH.numel(), MIN_CHUNK * vocabulary)
    assert 0 < largest.elements <= limit < tokens * vocabulary


@pytest.mark.parametrize(
    ("tokens", "width", "rows", "on_cpu", "on_cuda"),
    [
        # Llama 3 8B: one chunk on CUDA instead of sixteen.
        (2048, 4096, 128_256, 16, 1),
        # On CUDA a short micro-batch is one chunk of all its tokens.
        (500, 4096, 128_256, 4, 1),
        # No fifth chunk for the tokens beyond four times 2,048.
        (8273, 4096, 128_256, 32, 4),
        (3000, 2048, 32_000, 16, 1),
        # 1 GiB of logits are 2,092 tokens: three equal chunks.
        (4185, 4096, 128_256, 32, 3),
        (131_072, 4096, 128_256, 32, 63),
        # Gemma's vocabulary: 1 GiB of float32 logits are 1,024 tokens.
        (8192, 2048, 262_144, 64, 8),
        (131_072, 4096, 32_000, 8, 16),
    ],
)
def test_chunks_are_long_on_cuda_and_their_bytes_limited(
    tokens: int, width: int, rows: int, on_cpu: int, on_cuda: int
) -> None:
    for device, expected in (("cpu", on_cpu), ("cuda", on_cuda)):
        assert num_chunks(tokens, width, rows, torch.bfloat16, torch.device(device)) == expected


def test_chunks_are_nearly_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "num_chunks", lambda tokens, *_: -(-tokens // 100))
    for tokens, sizes in ((99, [99]), (100, [100]), (201, 3 * [67]), (299, [100, 100, 99])):
        chunks = list(vocabulary._chunks(torch.empty(tokens, WIDTH), WHOLE))
        assert [len(range(tokens)[chunk]) for chunk in chunks] == sizes


@pytest.mark.parametrize("size", [1, 100, TOKENS])
def test_the_size_of_chunks_does_not_change_the_loss(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = draw()
    usual = single(*inputs, 11)
    monkeypatch.setattr(vocabulary, "num_chunks", lambda tokens, *_: -(-tokens // size))
    torch.testing.assert_close(single(*inputs, 11), usual, rtol=1e-12, atol=1e-13)


def test_a_batch_without_targets_is_refused() -> None:
    with refused("batch_empty", "denominator", 0):
        vocab_parallel_loss(*draw(), 0, WHOLE)
