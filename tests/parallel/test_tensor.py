import pytest
import torch
from torch import Tensor, nn

from helpers import refused
from hydraulis.config.model import ModelConfig
from hydraulis.model.sequences import PackedSequences
from hydraulis.parallel.tensor import (
    _TokenHooks,
    _VocabularyHooks,
    apply_tensor_parallel,
    check_tensor_degree,
    split_range,
)
from parallel.tensor_workers import loss_and_gradients
from ranks import run_ranks
from small_model import (
    FAMILIES,
    build_decoder,
    count_targets,
    logits_of,
    random_tokens,
    slice_rows,
    small_config,
    split_dim,
    token_loss,
)

LENGTHS = [7, 1, 13, 7]


def single_process(config: ModelConfig) -> tuple[float, dict[str, Tensor]]:
    model = build_decoder(config)
    token_T, target_T = random_tokens(config, LENGTHS, padded=True)
    logits_TV = logits_of(model, token_T, PackedSequences.from_lengths(LENGTHS, "cpu"))
    loss = token_loss(logits_TV, target_T, count_targets(target_T))
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def join(name: str, config: ModelConfig, shape: torch.Size, pieces: list[Tensor]) -> Tensor:
    """Sum every rank's gradient at its rows; each rank of a replicated row has a partial gradient."""
    dim = split_dim(name, config)
    joined = torch.zeros(shape, dtype=torch.float64)
    for tensor_rank, piece in enumerate(pieces):
        rows = slice_rows(name, shape[dim], config, len(pieces), tensor_rank)
        joined.narrow(dim, rows.start, len(rows)).add_(piece)
    return joined


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("tp", "num_stages"), [(2, 1), (4, 1), (2, 2), (4, 3)])
@pytest.mark.devices
def test_tensor_parallelism_equals_a_single_process(tp: int, num_stages: int, *, tied: bool) -> None:
    config = small_config(tie_word_embeddings=tied)
    expected = assert_equals_the_single_process(config, tp, num_stages)
    assert len(expected) == 29 + (not tied)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.devices
def test_every_family_splits_with_fewer_key_value_heads_than_ranks(family: str) -> None:
    assert_equals_the_single_process(small_config(**{"num_key_value_heads": 2} | FAMILIES[family]), 4, 2)


def assert_equals_the_single_process(config: ModelConfig, tp: int, num_stages: int) -> dict[str, Tensor]:
    loss, expected = single_process(config)
    results = run_ranks(tp, loss_and_gradients, config, LENGTHS, num_stages)

    assert [rank_loss for rank_loss, _ in results] == pytest.approx([loss] * tp, rel=1e-10)
    assert len({rank_loss for rank_loss, _ in results}) == 1
    for name, gradient in expected.items():
        pieces = [rank_gradient[name] for _, rank_gradient in results]
        joined = join(name, config, gradient.shape, pieces)
        assert joined.shape == gradient.shape, name
        assert torch.linalg.norm(joined - gradient) <= 1e-10 * torch.linalg.norm(gradient), name
    assert all(rank_gradient.keys() == expected.keys() for _, rank_gradient in results)
    return expected


@pytest.mark.parametrize(("rows", "parts"), [(37, 4), (4, 4), (64, 8), (7, 1)])
def test_split_ranges_are_even_and_cover_all_rows(rows: int, parts: int) -> None:
    ranges = [split_range(rows, parts, index) for index in range(parts)]
    assert [row for part in ranges for row in part] == list(range(rows))
    sizes = [len(part) for part in ranges]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("changes", "tp", "limit"),
    [
        ({}, 16, "num_attention_heads = 8"),
        ({}, 3, "num_attention_heads = 8"),
        ({"num_attention_heads": 12}, 6, "num_key_value_heads = 4"),
        ({}, 0, "limit of 1"),
        ({"vocab_size": 3}, 4, "vocab_size = 3"),
        ({"intermediate_size": 3}, 4, "intermediate_size = 3"),
    ],
)
def test_degrees_that_do_not_fit_are_refused(changes: dict[str, int], tp: int, limit: str) -> None:
    with refused("scheme_model_mismatch", f"tp = {tp} ", limit):
        check_tensor_degree(small_config(**changes), tp)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_degrees_that_fit_are_accepted(tp: int) -> None:
    check_tensor_degree(small_config(), tp)


def test_a_degree_of_one_hooks_nothing() -> None:
    assert apply_tensor_parallel(build_decoder(small_config()), None, 0, 1) == []


def test_applying_checks_the_degree() -> None:
    with refused("scheme_model_mismatch", "tp = 16"):
        apply_tensor_parallel(build_decoder(small_config()), None, 0, 16)


def test_tokens_of_other_ranks_are_spread_over_the_own_rows() -> None:
    """One program adds up all tokens of a row, so a row that they share would hold up the others."""
    hooks = _VocabularyHooks(range(10, 20), _TokenHooks(None, None))
    (looked_up_T,) = hooks.keep_own_rows(nn.Module(), (torch.arange(30),))
    assert looked_up_T.tolist() == 3 * list(range(10))


def test_removing_the_handles_removes_every_hook() -> None:
    model = build_decoder(small_config(**FAMILIES["every bias"]))
    handles = apply_tensor_parallel(model, None, 0, 2)
    # Three on each attention and MLP of 3 layers (one for the bias), two on the embedding.
    assert len(handles) == 20
    for handle in handles:
        handle.remove()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
