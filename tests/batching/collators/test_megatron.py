from itertools import pairwise
from typing import Any

import pytest
import torch

from batching.collators.attention import attend, causal_segments, leaks, made_samples
from helpers import refused
from hydraulis.batching.collators import MegatronCollator

SIZES = [5, 1, 9, 3]
PADDING = [{}, {"pad_sequence_to": 4}, {"pad_to": 16, "pad_sequence_to": 4}, {"pad_to": 32}]


def run(batch: dict[str, Any]) -> list[torch.Tensor]:
    offsets = batch["packed_seq_params"]["cu_seqlens_q_padded"]
    out = attend(
        batch["tokens"][0], batch["position_ids"][0], causal_segments(offsets, batch["tokens"].numel())
    )
    return [out[start : start + size] for start, size in zip(offsets.tolist(), SIZES, strict=False)]


@pytest.mark.parametrize("padding", PADDING)
def test_sequences_see_no_other_sequence(padding: dict[str, int]) -> None:
    assert leaks(MegatronCollator(**padding), run, SIZES) == []


@pytest.mark.parametrize("padding", PADDING)
def test_labels_are_the_next_tokens_of_the_same_sequence(padding: dict[str, int]) -> None:
    batch = MegatronCollator(**padding)(made_samples(SIZES))
    params = batch["packed_seq_params"]
    given = params["cu_seqlens_q_padded"]
    offsets = given.tolist()
    for name in ("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_kv_padded"):
        assert torch.equal(params[name], given)
    assert given.dtype == torch.int32
    assert not any(size % padding.get("pad_sequence_to", 1) for size in given.diff().tolist())
    assert offsets[-1] == batch["tokens"].numel()
    assert params["max_seqlen_q"] == max(b - a for a, b in pairwise(offsets))
    expected = torch.zeros_like(batch["loss_mask"])
    for start, sample in zip(offsets, made_samples(SIZES), strict=False):
        tokens = sample["input_ids"]
        assert batch["tokens"][0, start : start + len(tokens)].tolist() == tokens
        assert batch["labels"][0, start : start + len(tokens) - 1].tolist() == tokens[1:]
        expected[0, start : start + len(tokens) - 1] = 1
    assert torch.equal(batch["loss_mask"], expected)
    assert batch["num_targets"] == expected.sum()


@pytest.mark.parametrize("padding", [{"pad_to": 8}, {"pad_sequence_to": 8}])
def test_an_empty_list_is_one_sequence_of_padding(padding: dict[str, int]) -> None:
    batch = MegatronCollator(**padding)([])
    assert batch["packed_seq_params"]["cu_seqlens_q"].tolist() == [0, 8]
    assert batch["tokens"].shape == (1, 8)
    assert batch["num_targets"] == batch["loss_mask"].sum() == 0


def test_padding_that_breaks_the_divisor_of_sequences_is_refused() -> None:
    with refused("argument_invalid", "pad_to is 12", "pad_sequence_to 8"):
        MegatronCollator(pad_to=12, pad_sequence_to=8)
    with refused("argument_invalid", "pad_to is 0"):
        MegatronCollator(pad_to=0)
