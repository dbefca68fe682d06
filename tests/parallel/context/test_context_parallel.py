"""Attention across context ranks equals that of one process, forward and backward, for both kinds."""

import pytest
import torch
from torch import Tensor

from helpers import refused
from hydraulis import Scheme
from hydraulis.config.kinds import ContextKind
from hydraulis.model.attention.kernel import Heads, Segments
from hydraulis.model.attention.varlen import varlen_attention
from hydraulis.parallel.context.context_parallel import check_context_degree
from parallel.context.context_workers import attend, refuse, ring_buffers
from ranks import run_ranks
from small_model import small_config

KINDS: tuple[ContextKind, ...] = ("ulysses", "ring")
# Long sequences, lengths without a divisor, single tokens, fewer tokens than ranks, a padded end.
MIXES = {2: [[13, 1, 7, 2, 1], [1, 1]], 3: [[40, 1, 5, 2], [1, 2]], 4: [[29, 1, 1, 9], [3, 1], [1, 1, 1, 1]]}
HEAD_DIM = 6


def random_heads(
    num_tokens: int, num_queries: int, num_keys: int, dtype: torch.dtype
) -> tuple[Heads, Tensor]:
    generator = torch.Generator().manual_seed(num_tokens)

    def draw(num_heads: int) -> Tensor:
        wide = torch.randn(num_tokens, num_heads, HEAD_DIM, dtype=torch.float64, generator=generator)
        return wide.to(dtype)

    return Heads(draw(num_queries), draw(num_keys), draw(num_keys)), draw(num_queries)


def together(results: list[tuple[Tensor, ...]]) -> list[Tensor]:
    """Concatenate the parts of all ranks in the order of the micro-batch."""
    index_T = torch.cat([parts[0] for parts in results])
    assert sorted(index_T.tolist()) == list(range(len(index_T)))
    assert len({len(parts[0]) for parts in results}) == 1
    order_T = index_T.argsort()
    return [torch.cat(parts)[order_T] for parts in list(zip(*results, strict=True))[1:]]


def one_process(lengths: list[int], heads: Heads, do_TND: Tensor) -> list[Tensor]:
    own = Heads(*(x.clone().requires_grad_() for x in heads))
    o_TND = varlen_attention(*own, Segments.from_lengths(lengths, "cpu"))
    return [o_TND.detach(), *torch.autograd.grad(o_TND, own, do_TND)]


@pytest.mark.parametrize("kind", KINDS)
# Key/value heads split over the ranks, shared by ranks, a single one, and numbers that cp does not divide.
@pytest.mark.parametrize(
    ("cp", "num_heads"), [(2, (4, 4)), (2, (4, 1)), (3, (6, 3)), (3, (8, 4)), (4, (4, 2)), (4, (12, 4))]
)
@pytest.mark.devices
def test_context_parallel_attention_equals_that_of_one_process(
    kind: ContextKind, cp: int, num_heads: tuple[int, int]
) -> None:
    for lengths in MIXES[cp]:
        heads, do_TND = random_heads(sum(lengths), *num_heads, torch.float64)
        parts = together(run_ranks(cp, attend, kind, lengths, heads, do_TND))
        for part, expected in zip(parts, one_process(lengths, heads, do_TND), strict=True):
            torch.testing.assert_close(part, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.devices
def test_lower_precision_is_as_close_as_its_rounding_allows(kind: ContextKind, dtype: torch.dtype) -> None:
    lengths = [29, 1, 1, 9]
    heads, do_TND = random_heads(sum(lengths), 8, 2, dtype)
    parts = together(run_ranks(4, attend, kind, lengths, heads, do_TND))
    wide = one_process(lengths, Heads(*(x.double() for x in heads)), do_TND.double())
    tolerance = 50 * torch.finfo(dtype).eps
    for part, expected in zip(parts, wide, strict=True):
        assert part.dtype == dtype
        assert (part.double() - expected).norm() <= tolerance * expected.norm()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.devices
def test_two_runs_are_equal_to_the_bit(kind: ContextKind) -> None:
    heads, do_TND = random_heads(20, 4, 2, torch.float32)
    first, second = (together(run_ranks(4, attend, kind, [17, 3], heads, do_TND)) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_that_do_not_split_are_refused(kind: ContextKind) -> None:
    for code, message in run_ranks(2, refuse, kind, 5):
        assert code == "micro_batch_invalid"
        assert "5 tokens" in message
        assert "2 ranks" in message


def test_ulysses_needs_a_query_head_per_rank() -> None:
    config = small_config()
    for scheme in ("<1>", "<cp8>", "<cp3>", "<tp2,cp4>"):
        check_context_degree(config, Scheme(scheme), "ulysses")
    with refused("scheme_model_mismatch", "<tp2,cp5>", 4):
        check_context_degree(config, Scheme("<tp2,cp5>"), "ulysses")


def test_ring_attention_has_no_limit() -> None:
    check_context_degree(small_config(), Scheme("<tp8,cp64>"), "ring")


def test_all_layers_and_micro_batches_reuse_the_buffers_of_the_ring() -> None:
    # The second micro-batch is the largest.
    batches, num_layers, num_ranks = [[7, 20], [51, 9], [12]], 3, 3
    # Per layer keys and values are sent and received twice, and again in backward with gradients three times.
    expected = 2 * len(batches) * num_layers * (2 + 2 + 3)
    for found in run_ranks(num_ranks, ring_buffers, batches, num_layers):
        assert found == (expected, 4, True, True)
