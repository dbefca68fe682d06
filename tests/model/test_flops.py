"""The operations of a step, against torch's own count."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from hydraulis.config.lora import Adapters
from hydraulis.model.flops import Utilisation, training_flops
from hydraulis.model.parameters import is_adapter
from hydraulis.model.sequences import PackedSequences
from small_model import FAMILIES, build_decoder, count_targets, random_tokens, small_config, token_loss


@pytest.mark.parametrize("family", ["mistral", "qwen3"])
def test_matrix_products_equal_those_that_torch_counts(family: str) -> None:
    config = small_config(**FAMILIES[family])
    model = build_decoder(config)
    lengths = (9, 4)
    token_T, target_T = random_tokens(config, lengths, padded=False)
    with FlopCounterMode(display=False) as counted:
        hidden = model(token_T, PackedSequences.from_lengths(lengths, torch.device("cpu")))
        assert model.lm_head is not None
        token_loss(model.lm_head(hidden), target_T, count_targets(target_T)).backward()
    by_operation = counted.get_flop_counts()["Global"]
    products = sum(flops for name, flops in by_operation.items() if str(name) in ("aten.mm", "aten.addmm"))
    assert products == training_flops(config, sum(lengths), 0)


def test_products_under_adapters_equal_those_that_torch_counts() -> None:
    config = small_config(adapters=Adapters(rank=3, alpha=6.0, targets=("q_proj", "o_proj", "up_proj")))
    model = build_decoder(config)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_adapter(name))
    lengths = (9, 4)
    token_T, target_T = random_tokens(config, lengths, padded=False)
    with FlopCounterMode(display=False) as counted:
        hidden = model(token_T, PackedSequences.from_lengths(lengths, torch.device("cpu")))
        assert model.lm_head is not None
        token_loss(model.lm_head(hidden), target_T, count_targets(target_T)).backward()
    by_operation = counted.get_flop_counts()["Global"]
    products = sum(flops for name, flops in by_operation.items() if str(name) in ("aten.mm", "aten.addmm"))
    # The inputs of the first layer's queries, keys and values need no gradient.
    keys = config.num_key_value_heads * config.head_dim
    queries = config.num_attention_heads * config.head_dim
    first = 2 * sum(lengths) * config.hidden_size * (queries + 2 * keys + 3)
    assert products == training_flops(config, sum(lengths), 0) - first


def test_attention_counts_each_pair_of_a_query_and_an_earlier_key() -> None:
    config = small_config()
    length = 1000
    pairs = length * (length + 1) // 2
    # Two products of a pair, each of head_dim multiplications and additions, three times with backward.
    by_hand = pairs * 2 * 2 * config.head_dim * config.num_attention_heads * config.num_hidden_layers * 3
    counted = training_flops(config, length, length**2) - training_flops(config, length, 0)
    assert counted == pytest.approx(by_hand, rel=2e-3)
    # Two packed sequences do not attend to each other.
    two = training_flops(config, 2 * length, 2 * length**2) - training_flops(config, 2 * length, 0)
    assert two == pytest.approx(2 * counted)


def test_utilisation_is_needed_over_possible_operations() -> None:
    config = small_config()
    flops = training_flops(config, 100, 4_000)
    # In half a second two ranks of a TFLOP/s could do 1e12 operations.
    assert Utilisation(config, 2, 1.0).of(100, 4_000, 500.0) == pytest.approx(flops / 1e12)


def test_a_shared_device_counts_once() -> None:
    alone, shared = Utilisation(small_config(), 1, 1.0), Utilisation(small_config(), 8, 1.0, 8)
    assert shared.of(100, 4_000, 500.0) == alone.of(100, 4_000, 500.0)


def test_without_a_peak_there_is_no_utilisation() -> None:
    assert Utilisation(small_config(), 2, None).of(100, 4_000, 500.0) is None
