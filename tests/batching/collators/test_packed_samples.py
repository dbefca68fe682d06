from typing import Any

import numpy as np
import pytest
import torch

from helpers import refused
from hydraulis.batching.collators import Packing

MASKS = ["loss_mask", "completion_mask", "assistant_masks"]


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_restricts_the_targets_but_never_the_first_token(name: str) -> None:
    packed = Packing().pack([{"input_ids": [4, 5, 6], name: [1, 0, 1]}, {"input_ids": [7], name: [1]}])
    assert packed.labels.tolist() == [-100, -100, 6, -100]
    assert packed.num_targets == 1


def test_labels_of_a_sample_are_kept() -> None:
    packed = Packing().pack([{"input_ids": torch.tensor([4, 5, 6]), "labels": np.array([4, -100, 9])}])
    assert packed.labels.tolist() == [-100, -100, 9]


def test_long_sequences_are_cut_at_their_end() -> None:
    packed = Packing(max_tokens=2).pack([{"input_ids": [4, 5, 6], "loss_mask": [1, 1, 0]}])
    assert (packed.tokens.tolist(), packed.labels.tolist()) == ([4, 5], [-100, 5])


def test_padding_is_no_target_and_has_its_token() -> None:
    packed = Packing(pad_to=5, pad_sequence_to=2, pad_token=3).pack(
        [{"input_ids": [8]}, {"input_ids": [9, 9]}]
    )
    assert packed.tokens.tolist() == [8, 3, 9, 9, 3]
    assert packed.positions.tolist() == [0, 1, 0, 1, 0]
    assert packed.labels.tolist() == [-100, -100, -100, 9, -100]


@pytest.mark.parametrize(
    ("sample", "part"),
    [
        ([1, 2, 3], "is a list: it must be a mapping"),
        ({}, "no input_ids"),
        ({"input_ids": None}, "no input_ids"),
        ({"input_ids": []}, "0 tokens"),
        ({"input_ids": [[1, 2, 3, 4, 5]]}, "input_ids of the shape [1, 5]"),
        ({"input_ids": torch.ones(1, 5, dtype=torch.long)}, "input_ids of the shape [1, 5]"),
        ({"input_ids": [[1, 2], [3]]}, "input_ids of several lists"),
        ({"input_ids": 7}, "input_ids of the shape []"),
        ({"input_ids": [1.5, 2.7]}, "input_ids of the type float64: they must be whole numbers"),
        ({"input_ids": [1, None]}, "input_ids of the type object"),
        ({"input_ids": ["1", "2"]}, "input_ids of the type <U1"),
        ({"input_ids": [True, False]}, "input_ids of the type bool"),
        ({"input_ids": [1], "labels": [1, 2]}, "1 tokens and labels of 2"),
        ({"input_ids": [1, 2], "labels": [-100, 2.5]}, "labels of the type float64"),
        ({"input_ids": [1, 2, 3], "completion_mask": [0, 1]}, "3 tokens and completion_mask of 2"),
        ({"input_ids": [1, 2, 3], "completion_mask": [[0, 1, 1]]}, "completion_mask of the shape [1, 3]"),
        ({"input_ids": [1, 2, 3], "loss_mask": [0, None, 1]}, "loss_mask of the type object"),
    ],
)
def test_samples_are_checked(sample: Any, part: str) -> None:
    with refused("micro_batch_invalid", "sample 1", part):
        Packing().pack([{"input_ids": [1]}, sample])


@pytest.mark.parametrize("name", ["labels", "seq_lengths", "position_ids", "attention_mask", *MASKS])
def test_a_field_of_none_is_absent(name: str) -> None:
    packed = Packing().pack([{"input_ids": [4, 5, 6], name: None}])
    assert packed.labels.tolist() == [-100, 5, 6]


@pytest.mark.parametrize("kind", [np.int32, np.uint16, np.int64])
def test_tokens_of_each_type_of_whole_numbers_are_taken(kind: Any) -> None:
    """A label of -100 does not fit into an unsigned type."""
    packed = Packing().pack([{"input_ids": np.array([4, 5, 6], kind), "loss_mask": [0.0, 0.0, 1.0]}])
    assert (packed.tokens.tolist(), packed.labels.tolist()) == ([4, 5, 6], [-100, -100, 6])


def test_rules_are_checked() -> None:
    with refused("argument_invalid", "pad_to is 0"):
        Packing(pad_to=0)


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"seq_lengths": [2, 1]}, "seq_lengths"),
        ({"position_ids": [0, 1, 0]}, "position_ids"),
        ({"attention_mask": [1, 1, 0]}, "attention_mask"),
    ],
)
def test_rows_of_several_sequences_or_with_padding_are_refused(fields: dict[str, Any], part: str) -> None:
    plain = {"seq_lengths": [3], "position_ids": [0, 1, 2], "attention_mask": [1, 1, 1]}
    assert Packing().pack([{"input_ids": [5, 6, 7]} | plain]).num_targets == 2
    with refused("micro_batch_invalid", "sample 0", part):
        Packing().pack([{"input_ids": [5, 6, 7]} | fields])


def test_a_micro_batch_above_the_cap_is_refused() -> None:
    samples = [{"input_ids": [1] * 5}] * 2
    assert len(Packing(cap_tokens=12, pad_to=4).pack(samples).tokens) == 12
    with refused("micro_batch_invalid", "12 tokens", "cap_tokens is 11"):
        Packing(cap_tokens=11, pad_to=4).pack(samples)
