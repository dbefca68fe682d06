import pytest
import torch
from torch import Tensor

from helpers import refused
from hydraulis.model.decoder import Decoder
from hydraulis.model.parameters import master_parameter_name
from hydraulis.model.sequences import PackedSequences
from hydraulis.parallel.pipeline import cut_stage
from small_model import build_decoder, count_targets, logits_of, random_tokens, small_config, token_loss

LENGTHS = [5, 9, 2]


def cut(layers: range, *, first: bool = False, last: bool = False, tied: bool = False) -> Decoder:
    model = build_decoder(small_config(tie_word_embeddings=tied))
    cut_stage(model, layers, first=first, last=last)
    return model


@pytest.mark.parametrize("tied", [False, True])
def test_the_stages_together_equal_the_decoder(*, tied: bool) -> None:
    whole = build_decoder(small_config(tie_word_embeddings=tied))
    stages = [
        cut(range(1), first=True, tied=tied),
        cut(range(1, 3), tied=tied),
        cut(range(3, 3), last=True, tied=tied),
    ]
    token_T, target_T = random_tokens(whole.config, LENGTHS, padded=False)
    sequences, denominator = PackedSequences.from_lengths(LENGTHS, "cpu"), count_targets(target_T)

    loss = token_loss(logits_of(whole, token_T, sequences), target_T, denominator)
    loss.backward()
    x = token_T
    for stage in stages:
        x = stage(x, sequences)
    head = stages[-1].lm_head
    assert head is not None
    stage_loss = token_loss(head(x), target_T, denominator)
    stage_loss.backward()

    assert stage_loss.item() == loss.item()
    gradient: dict[str, Tensor] = {}
    for stage in stages:
        for name, parameter in stage.named_parameters():
            assert parameter.grad is not None
            name = master_parameter_name(name, whole.config)
            gradient[name] = gradient[name] + parameter.grad if name in gradient else parameter.grad
    expected = {name: parameter.grad for name, parameter in whole.named_parameters()}
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-12)


def test_layers_keep_their_global_names() -> None:
    names = {name for name, _ in cut(range(1, 2)).named_parameters()}
    assert names
    assert all(name.startswith("layers.1.") for name in names)


def test_a_tied_head_without_its_embedding_has_its_own_parameter() -> None:
    assert "lm_head.weight" in dict(cut(range(2, 3), last=True, tied=True).named_parameters())


def test_a_stage_that_is_first_and_last_stays_tied() -> None:
    model = cut(range(3), first=True, last=True, tied=True)
    assert model.embed_tokens is not None
    assert model.lm_head is not None
    assert model.lm_head.weight is model.embed_tokens.weight


def test_a_layer_beyond_the_last_is_refused() -> None:
    with refused("argument_invalid", "layer 3", "0, 1, 2"):
        cut(range(2, 4))
