from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention
from transformers import LlamaConfig, LlamaForCausalLM

from batching.collators.attention import VOCABULARY, attend
from helpers import refused
from hydraulis.batching.collators import PrefixTreeCollator, tree_loss, tree_mask, tree_mask_mod

PROMPT = [5, 9, 2, 40, 7]
SAMPLES: list[dict[str, Any]] = [
    {"input_ids": [*PROMPT, 11, 12, 13], "loss_mask": [0] * 5 + [1] * 3},
    {"input_ids": [*PROMPT, 11, 12, 80, 81], "loss_mask": [0] * 5 + [1] * 4, "weights": [0.5] * 9},
    {"input_ids": [*PROMPT, 30], "loss_mask": [0] * 5 + [1], "weights": [-2.0] * 6},
    {"input_ids": [77, 3, 4]},
    {"input_ids": [77]},
]
PADDING = [{}, {"pad_to": 32}]


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    return LlamaForCausalLM(config).double()


def forward(model: Any, batch: dict[str, Any]) -> torch.Tensor:
    logits: torch.Tensor = model(
        input_ids=batch["input_ids"],
        position_ids=batch["position_ids"],
        attention_mask=tree_mask(batch["ends"]),
        use_cache=False,
    ).logits
    return logits


@pytest.mark.parametrize("padding", PADDING)
@torch.no_grad()
def test_a_tree_computes_each_copy_as_alone(model: Any, padding: dict[str, int]) -> None:
    batch = PrefixTreeCollator(**padding)(SAMPLES)
    assert batch["input_ids"].shape[1] == padding.get("pad_to", 14)
    logits = forward(model, batch)[0]
    for sample, path in zip(SAMPLES, batch["paths"], strict=True):
        alone = model(torch.tensor([sample["input_ids"]])).logits[0]
        torch.testing.assert_close(logits[path], alone, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("padding", PADDING)
def test_loss_and_gradient_are_those_of_the_copies(model: Any, padding: dict[str, int]) -> None:
    batch = PrefixTreeCollator(**padding)(SAMPLES)
    model.zero_grad()
    tree_loss(forward(model, batch), batch).backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    targets = 0
    for sample in SAMPLES:
        token = torch.tensor(sample["input_ids"])
        losses = F.cross_entropy(model(token[None]).logits[0, :-1], token[1:], reduction="none")
        mask = torch.tensor(sample.get("loss_mask", [1] * len(token)))[1:]
        weights = torch.tensor(sample.get("weights", [1.0] * len(token)))[1:]
        (losses * mask * weights).sum().backward()
        targets += int(mask.sum())
    assert batch["num_targets"] == targets
    for name, parameter in model.named_parameters():
        # The model's norms compute in float32.
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("padding", PADDING)
def test_no_sequence_sees_another_branch(padding: dict[str, int]) -> None:
    def run(samples: list[dict[str, Any]]) -> list[torch.Tensor]:
        batch = PrefixTreeCollator(**padding)(samples)
        out = attend(batch["input_ids"][0], batch["position_ids"][0], tree_mask(batch["ends"])[0, 0])
        return [out[path] for path in batch["paths"]]

    before = run(SAMPLES)
    for changed, sample in enumerate(SAMPLES):
        for place in range(len(sample["input_ids"])):
            tokens = list(sample["input_ids"])
            tokens[place] = 96
            after = run([*SAMPLES[:changed], {"input_ids": tokens}, *SAMPLES[changed + 1 :]])
            pairs = zip(before, after, strict=True)
            moved = [not torch.allclose(one, other, rtol=1e-12) for one, other in pairs]
            assert moved == [index == changed for index in range(len(SAMPLES))]


def test_flex_attention_takes_the_same_mask() -> None:
    ends = PrefixTreeCollator(pad_to=16)(SAMPLES)["ends"]
    mask = create_mask(tree_mask_mod(ends), 1, 1, 16, 16, device="cpu")
    assert torch.equal(mask, tree_mask(ends))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@torch.no_grad()
def test_flex_attention_over_a_tree_is_that_over_the_copies() -> None:
    batch = PrefixTreeCollator(pad_to=16)(SAMPLES)
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 2, 16, 8, dtype=torch.float64)
    block_mask = create_block_mask(
        tree_mask_mod(batch["ends"]), None, None, 16, 16, device="cpu", BLOCK_SIZE=4
    )
    tree: torch.Tensor = flex_attention(query, key, value, block_mask=block_mask)
    for path in batch["paths"]:
        copy = (query[:, :, path], key[:, :, path], value[:, :, path])
        alone = F.scaled_dot_product_attention(copy[0], copy[1], copy[2], is_causal=True)
        torch.testing.assert_close(tree[:, :, path], alone, rtol=1e-10, atol=1e-12)


def test_an_empty_list_is_padding_that_counts_nothing() -> None:
    batch = PrefixTreeCollator(pad_to=4)([])
    assert batch["input_ids"].shape == (1, 4)
    assert batch["num_targets"] == 0
    assert tree_loss(torch.zeros(1, 4, VOCABULARY), batch) == 0


def test_samples_are_cut_and_read_as_by_the_other_collators() -> None:
    batch = PrefixTreeCollator(max_tokens=2)([{"input_ids": np.array([4, 5, 6])}, {"input_ids": [4, 5, 7]}])
    assert batch["input_ids"].tolist() == [[4, 5]]
    assert batch["num_targets"] == 2
    assert batch["weights"].tolist() == [0, 2]
    with refused("micro_batch_invalid", "pad_sequence_to is 8"):
        PrefixTreeCollator(pad_sequence_to=8)([])


@pytest.mark.parametrize(
    ("weights", "part"),
    [
        ([1.0, 1.0], "3 tokens and weights of 2"),
        ([1.0] * 4, "3 tokens and weights of 4"),
        (2.0, "weights of the shape []"),
        ([1.0, None, 1.0], "weights of the type object: they must be numbers"),
        ([1.0, 1.0, float("nan")], "the weight nan for token 2"),
        ([1.0, float("inf"), 1.0], "the weight inf for token 1"),
    ],
)
def test_weights_are_one_finite_number_for_each_token(weights: Any, part: str) -> None:
    sample = {"input_ids": [1, 2, 3], "weights": weights}
    with refused("micro_batch_invalid", "sample 0", part):
        PrefixTreeCollator(max_tokens=3)([sample])


@pytest.mark.parametrize("weights", [None, [float("nan"), 1.0, 1.0]])
def test_weights_of_tokens_that_are_no_target_do_not_count(weights: Any) -> None:
    batch = PrefixTreeCollator()([{"input_ids": [1, 2, 3], "weights": weights}])
    assert batch["weights"].tolist() == [0, 1, 1]


def test_a_batch_above_the_cap_is_refused() -> None:
    """A common prefix counts once."""
    samples = [{"input_ids": [1, 2, 3]}, {"input_ids": [1, 2, 4]}]
    assert PrefixTreeCollator(cap_tokens=4)(samples)["input_ids"].shape == (1, 4)
    with refused("micro_batch_invalid", "4 tokens", "cap_tokens is 3"):
        PrefixTreeCollator(cap_tokens=3)(samples)
