import pytest
import torch
from torch import Tensor

from hydraulis.model.decoder import Decoder
from hydraulis.model.parameters import master_parameter_name
from hydraulis.model.sequences import PackedSequences
from small_model import build_decoder, count_targets, logits_of, random_tokens, small_config, token_loss

LENGTHS = [7, 1, 12, 4]


def gradients(model: Decoder) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def test_parameters_have_the_names_of_hugging_face_without_the_model_prefix() -> None:
    names = [name for name, _ in Decoder(small_config(num_hidden_layers=1)).named_parameters()]
    assert names == [
        "embed_tokens.weight",
        "layers.0.input_layernorm.weight",
        "layers.0.self_attn.q_proj.weight",
        "layers.0.self_attn.k_proj.weight",
        "layers.0.self_attn.v_proj.weight",
        "layers.0.self_attn.o_proj.weight",
        "layers.0.post_attention_layernorm.weight",
        "layers.0.mlp.gate_proj.weight",
        "layers.0.mlp.up_proj.weight",
        "layers.0.mlp.down_proj.weight",
        "norm.weight",
        "lm_head.weight",
    ]


def test_the_decoder_can_be_built_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = Decoder(small_config())
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


def test_the_decoder_maps_tokens_to_hidden_states() -> None:
    config = small_config()
    token_T, _ = random_tokens(config, LENGTHS, padded=False)
    hidden_TH = build_decoder(config)(token_T, PackedSequences.from_lengths(LENGTHS, "cpu"))
    assert hidden_TH.shape == (sum(LENGTHS), config.hidden_size)
    assert hidden_TH.dtype == torch.float64


@pytest.mark.parametrize("tied", [False, True])
def test_a_packed_micro_batch_equals_its_sequences_one_by_one(*, tied: bool) -> None:
    config = small_config(tie_word_embeddings=tied)
    token_T, target_T = random_tokens(config, LENGTHS, padded=True)
    denominator = count_targets(target_T)
    packed, single = build_decoder(config), build_decoder(config)

    loss = token_loss(
        logits_of(packed, token_T, PackedSequences.from_lengths(LENGTHS, "cpu")), target_T, denominator
    )
    loss.backward()

    single_loss = 0.0
    # Without the last segment: padding must change nothing.
    parts = list(zip(torch.split(token_T, LENGTHS), torch.split(target_T, LENGTHS), strict=True))[:-1]
    for token, target in parts:
        sequence = PackedSequences.from_lengths([len(token)], "cpu")
        part = token_loss(logits_of(single, token, sequence), target, denominator)
        part.backward()
        single_loss += part.item()

    assert loss.item() == pytest.approx(single_loss, abs=1e-12)
    assert len(gradients(single)) == len(list(single.parameters()))
    torch.testing.assert_close(gradients(packed), gradients(single), rtol=1e-12, atol=1e-12)


def test_hidden_states_do_not_depend_on_later_tokens() -> None:
    config = small_config()
    model, sequences = build_decoder(config), PackedSequences.from_lengths([10], "cpu")
    token_T, _ = random_tokens(config, [10], padded=False)
    changed_T = token_T.clone()
    changed_T[6] = (changed_T[6] + 1) % config.vocab_size
    difference_T = (model(token_T, sequences) - model(changed_T, sequences)).abs().amax(-1)
    assert not difference_T[:6].any()
    assert difference_T[6:].all()


def test_tied_ends_share_one_parameter() -> None:
    model = build_decoder(small_config(tie_word_embeddings=True))
    assert model.embed_tokens is not None
    assert model.lm_head is not None
    assert model.lm_head.weight is model.embed_tokens.weight
    assert "lm_head.weight" not in dict(model.named_parameters())


def test_untied_ends_have_two_parameters() -> None:
    assert "lm_head.weight" in dict(build_decoder(small_config()).named_parameters())


def test_the_parameter_table_names_a_tied_head_as_the_embedding() -> None:
    tied, untied = small_config(tie_word_embeddings=True), small_config()
    assert master_parameter_name("lm_head.weight", tied) == "embed_tokens.weight"
    assert master_parameter_name("lm_head.weight", untied) == "lm_head.weight"
    assert master_parameter_name("layers.0.mlp.up_proj.weight", tied) == "layers.0.mlp.up_proj.weight"
