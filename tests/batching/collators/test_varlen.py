from typing import Any

import pytest
import torch
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from batching.collators.attention import VOCABULARY, attend, causal_segments, leaks, made_samples
from hydraulis.batching.collators import TransformersCollator, VarlenCollator

SIZES = [5, 1, 9, 3]
PADDING = [{}, {"pad_to": 8}, {"pad_sequence_to": 4}, {"pad_to": 16, "pad_sequence_to": 4}]


def starts(offsets: torch.Tensor) -> list[int]:
    return offsets[: len(SIZES)].tolist()


@pytest.fixture(scope="module", params=["sdpa", "eager"])
def model(request: pytest.FixtureRequest) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config: Any = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    config._attn_implementation = request.param
    return LlamaForCausalLM(config).double()


def logits_of(model: LlamaForCausalLM, batch: dict[str, Any]) -> list[torch.Tensor]:
    with torch.no_grad():
        logits = model(**batch).logits[0]
    return [
        logits[start : start + size]
        for start, size in zip(starts(batch["cu_seq_lens_q"]), SIZES, strict=True)
    ]


@pytest.mark.parametrize("padding", PADDING)
def test_transformers_sees_no_other_sequence(model: LlamaForCausalLM, padding: dict[str, int]) -> None:
    assert leaks(TransformersCollator(**padding), lambda batch: logits_of(model, batch), SIZES) == []


@pytest.mark.parametrize("padding", PADDING)
def test_transformers_computes_each_sequence_as_alone(
    model: LlamaForCausalLM, padding: dict[str, int]
) -> None:
    samples = made_samples(SIZES)
    packed = logits_of(model, TransformersCollator(**padding)(samples))
    for sample, logits in zip(samples, packed, strict=True):
        with torch.no_grad():
            alone = model(torch.tensor([sample["input_ids"]])).logits[0]
        # Eager attention has its softmax in float32.
        torch.testing.assert_close(logits, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("padding", PADDING)
@torch.no_grad()
def test_the_loss_is_the_mean_over_all_targets(model: LlamaForCausalLM, padding: dict[str, int]) -> None:
    samples = made_samples(SIZES)
    samples[2]["completion_mask"] = [0, 0, 0, 1, 1, 0, 1, 1, 1]
    batches = [TransformersCollator(**padding)(samples[:2]), TransformersCollator(**padding)(samples[2:])]
    targets = sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in batches)
    assert targets == 4 + 0 + 5 + 2
    losses = [model(**batch, num_items_in_batch=targets).loss for batch in batches]
    total = 0.0
    for sample in samples:
        token = torch.tensor(sample["input_ids"])
        logits = model(token[None]).logits[0, :-1]
        losses_t = F.cross_entropy(logits, token[1:], reduction="none")
        mask = torch.tensor(sample.get("completion_mask", [1] * len(token)))[1:]
        total += float((losses_t * mask).sum())
    # transformers computes losses in float32.
    assert float(sum(losses)) == pytest.approx(total / targets, rel=1e-6)


def run_varlen(batch: dict[str, Any]) -> list[torch.Tensor]:
    mask = causal_segments(batch["cu_seqlens"], len(batch["input_ids"]))
    out = attend(batch["input_ids"], batch["position_ids"], mask)
    return [out[start : start + size] for start, size in zip(starts(batch["cu_seqlens"]), SIZES, strict=True)]


@pytest.mark.parametrize("padding", PADDING)
def test_segments_see_no_other_sequence(padding: dict[str, int]) -> None:
    assert leaks(VarlenCollator(**padding), run_varlen, SIZES) == []


def test_the_probe_finds_a_leak(model: LlamaForCausalLM) -> None:
    """With a cache the model ignores positions that start again."""
    assert leaks(TransformersCollator(), lambda batch: logits_of(model, batch | {"use_cache": True}), SIZES)


@pytest.mark.parametrize("padding", PADDING)
def test_the_metadata_describe_the_tokens(padding: dict[str, int]) -> None:
    batch = VarlenCollator(**padding)(made_samples(SIZES))
    offsets = batch["cu_seqlens"]
    assert offsets.dtype == torch.int32
    assert offsets[0] == 0
    assert offsets[-1] == len(batch["input_ids"])
    assert batch["max_seqlen"] == int(offsets.diff().max())
    assert len(batch["input_ids"]) % padding.get("pad_to", 1) == 0
    assert (offsets[:5] % padding.get("pad_sequence_to", 1) == 0).all()
    assert batch["num_targets"] == sum(SIZES) - len(SIZES) == int((batch["labels"] != -100).sum())
    for start, sample in zip(starts(offsets), made_samples(SIZES), strict=True):
        size = len(sample["input_ids"])
        assert batch["input_ids"][start : start + size].tolist() == sample["input_ids"]
        assert batch["position_ids"][start : start + size].tolist() == list(range(size))
        assert batch["labels"][start : start + size].tolist() == [-100, *sample["input_ids"][1:]]


def test_an_empty_list_is_padding_that_counts_nothing(model: LlamaForCausalLM) -> None:
    batch = TransformersCollator(pad_to=4)([])
    assert batch["input_ids"].shape == (1, 4)
    assert model(**batch, num_items_in_batch=7).loss == 0
    assert VarlenCollator()([])["num_targets"] == 0
