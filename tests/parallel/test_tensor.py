import pytest
import torch
from torch import Tensor

from hydraulis.config.model import ModelConfig
from hydraulis.errors import InvalidInputError
from hydraulis.model.loss import token_loss
from hydraulis.model.packed import PackedSequences
from hydraulis.parallel.tensor import apply_tensor_parallel, check_tensor_degree, split_dim, split_range
from parallel.tensor_workers import loss_and_gradients
from ranks import run_ranks
from small_model import build_decoder, count_targets, random_tokens, small_config

LENGTHS = [7, 1, 13, 7]


def single_process(config: ModelConfig) -> tuple[float, dict[str, Tensor]]:
    model = build_decoder(config)
    token_T, target_T = random_tokens(config, LENGTHS, padded=True)
    logits_TV = model(token_T, PackedSequences.from_lengths(LENGTHS, "cpu"))
    loss = token_loss(logits_TV, target_T, count_targets(target_T))
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def join(name: str, pieces: list[Tensor]) -> Tensor:
    dim = split_dim(name)
    return torch.stack(pieces).sum(0) if dim is None else torch.cat(pieces, dim)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("tp", "num_stages"), [(2, 1), (4, 1), (2, 2), (4, 3)])
def test_it_equals_the_single_process(tp: int, num_stages: int, *, tied: bool) -> None:
    config = small_config(tie_word_embeddings=tied)
    loss, expected = single_process(config)
    results = run_ranks(tp, loss_and_gradients, config, LENGTHS, num_stages)

    assert [rank_loss for rank_loss, _ in results] == pytest.approx([loss] * tp, rel=1e-10)
    assert len({rank_loss for rank_loss, _ in results}) == 1
    assert len(expected) == 29 + (not tied)
    for name, gradient in expected.items():
        joined = join(name, [rank_gradient[name] for _, rank_gradient in results])
        assert joined.shape == gradient.shape, name
        assert torch.linalg.norm(joined - gradient) <= 1e-10 * torch.linalg.norm(gradient), name
    assert all(rank_gradient.keys() == expected.keys() for _, rank_gradient in results)


def test_every_parameter_has_its_split_dim() -> None:
    split = {name: split_dim(name) for name, _ in build_decoder(small_config()).named_parameters()}
    assert len(split) == 30
    assert {name.split(".")[-2] for name, dim in split.items() if dim == 1} == {"o_proj", "down_proj"}
    assert {name.split(".")[-2] for name, dim in split.items() if dim is None} == {
        "input_layernorm",
        "post_attention_layernorm",
        "norm",
    }


def test_an_unknown_parameter_has_none() -> None:
    with pytest.raises(InvalidInputError, match=r"'layers\.0\.self_attn\.q_norm\.weight'") as caught:
        split_dim("layers.0.self_attn.q_norm.weight")
    assert caught.value.code == "parameter_name"


@pytest.mark.parametrize(("rows", "parts"), [(37, 4), (4, 4), (64, 8), (7, 1)])
def test_split_ranges_are_even_and_cover_all_rows(rows: int, parts: int) -> None:
    ranges = [split_range(rows, parts, index) for index in range(parts)]
    assert [row for part in ranges for row in part] == list(range(rows))
    sizes = [len(part) for part in ranges]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("changes", "tp", "message"),
    [
        ({}, 8, "tp = 8 is above its limit of num_key_value_heads = 4"),
        ({}, 3, "tp = 3 does not divide num_key_value_heads = 4"),
        ({}, 0, "tp = 0 is below its limit of 1"),
        ({"vocab_size": 3}, 4, "tp = 4 is above its limit of vocab_size = 3"),
        ({"intermediate_size": 3}, 4, "tp = 4 is above its limit of intermediate_size = 3"),
    ],
)
def test_degrees_that_do_not_fit_are_refused(changes: dict[str, int], tp: int, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        check_tensor_degree(small_config(**changes), tp)
    assert caught.value.code == "tensor_degree"


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_degrees_that_fit_are_not(tp: int) -> None:
    check_tensor_degree(small_config(), tp)


def test_a_degree_of_one_hooks_nothing() -> None:
    assert apply_tensor_parallel(build_decoder(small_config()), None, 0, 1) == []


def test_applying_checks_the_degree() -> None:
    with pytest.raises(InvalidInputError, match="tp = 8"):
        apply_tensor_parallel(build_decoder(small_config()), None, 0, 8)


def test_removing_the_handles_removes_every_hook() -> None:
    model = build_decoder(small_config())
    handles = apply_tensor_parallel(model, None, 0, 2)
    # Two on each attention and MLP of 3 layers, two on the embedding, one on the head.
    assert len(handles) == 15
    for handle in handles:
        handle.remove()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
