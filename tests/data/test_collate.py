import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers import refused
from hydraulis.data.collate import PADDING_TOKEN, PackedMicroBatch, collate
from hydraulis.data.tokens import MaskedTokens
from hydraulis.model.sequences import IGNORE_INDEX, PackedSequences, Sequences

DOCUMENTS = st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=8)
MULTIPLES = st.integers(1, 16)

# The first call imports parts of torch, and a loaded machine is no failure.


def arrays_of(documents: list[bytes]) -> list[np.ndarray]:
    return [np.frombuffer(document, dtype=np.uint8) for document in documents]


def whole(packed: PackedMicroBatch) -> PackedSequences:
    assert isinstance(packed.sequences, PackedSequences)
    return packed.sequences


def starts_of(documents: list[bytes]) -> list[int]:
    return [sum(map(len, documents[:i])) for i in range(len(documents))]


def test_a_small_plan_has_the_expected_tensors() -> None:
    packed = collate(arrays_of([b"\x01\x02\x03", b"\x04", b"\x05\x06"]), multiple=4)
    ignored = IGNORE_INDEX
    assert packed.token_t.tolist() == [1, 2, 3, 4, 5, 6, PADDING_TOKEN, PADDING_TOKEN]
    assert packed.target_t.tolist() == [2, 3, ignored, ignored, 6, ignored, ignored, ignored]
    assert whole(packed).lengths == (3, 1, 2, 2)
    assert packed.sequences.position_T.tolist() == [0, 1, 2, 0, 0, 1, 0, 1]
    assert (packed.num_tokens, packed.num_targets) == (8, 3)


class EveryOther:
    """Takes the tokens at odd places."""

    def share(self, whole: PackedSequences) -> tuple[torch.Tensor, Sequences]:
        return torch.arange(1, whole.num_tokens, 2), whole


def test_a_ranks_share_has_its_own_tokens_and_the_counts_of_the_whole() -> None:
    packed = collate(arrays_of([b"\x01\x02\x03", b"\x04", b"\x05\x06"]), multiple=4, shared=EveryOther())
    assert packed.token_t.tolist() == [2, 4, 6, PADDING_TOKEN]
    assert packed.target_t.tolist() == [3, IGNORE_INDEX, IGNORE_INDEX, IGNORE_INDEX]
    assert (packed.num_tokens, packed.num_targets) == (8, 3)


@given(DOCUMENTS, MULTIPLES)
def test_tokens_come_back(documents: list[bytes], multiple: int) -> None:
    packed = collate(arrays_of(documents), multiple=multiple)
    assert packed.token_t.dtype == torch.int64
    for start, document in zip(starts_of(documents), documents, strict=True):
        assert packed.token_t[start : start + len(document)].tolist() == list(document)


@given(DOCUMENTS, MULTIPLES)
def test_targets_are_the_next_tokens_of_the_same_document(documents: list[bytes], multiple: int) -> None:
    packed = collate(arrays_of(documents), multiple=multiple)
    assert packed.target_t.dtype == torch.int64
    for start, document in zip(starts_of(documents), documents, strict=True):
        targets = packed.target_t[start : start + len(document)].tolist()
        assert targets == [*document[1:], IGNORE_INDEX]
    assert packed.num_targets == int((packed.target_t != IGNORE_INDEX).sum())
    assert packed.num_targets == sum(map(len, documents)) - len(documents)


@given(DOCUMENTS, MULTIPLES)
def test_padding_fills_the_next_multiple_and_is_never_a_target(documents: list[bytes], multiple: int) -> None:
    packed = collate(arrays_of(documents), multiple=multiple)
    num_tokens = sum(map(len, documents))
    num_padding = len(packed.token_t) - num_tokens
    assert 0 <= num_padding < multiple
    assert len(packed.token_t) % multiple == 0
    assert packed.token_t[num_tokens:].tolist() == [PADDING_TOKEN] * num_padding
    assert packed.target_t[num_tokens:].tolist() == [IGNORE_INDEX] * num_padding


@given(DOCUMENTS, MULTIPLES)
def test_each_document_and_the_padding_is_a_segment(documents: list[bytes], multiple: int) -> None:
    packed = collate(arrays_of(documents), multiple=multiple)
    num_padding = len(packed.token_t) - sum(map(len, documents))
    lengths = [*map(len, documents)] + [num_padding] * (num_padding > 0)
    assert list(whole(packed).lengths) == lengths
    positions = [position for length in lengths for position in range(length)]
    assert packed.sequences.position_T.tolist() == positions


def test_the_documents_are_copied() -> None:
    document = np.array([1, 2], dtype=np.uint8)
    packed = collate([document], multiple=1)
    document[0] = 9
    assert packed.token_t.tolist() == [1, 2]


def test_read_only_documents_are_accepted() -> None:
    document = np.array([1, 2], dtype=np.uint8)
    document.flags.writeable = False
    assert collate([document], multiple=2).token_t.tolist() == [1, 2]


def test_a_mask_selects_the_targets() -> None:
    masked = MaskedTokens(np.array([5, 6, 7, 8]), np.array([True, False, True, True]))
    nowhere = MaskedTokens(np.array([3, 4]), np.array([True, False]))
    packed = collate([np.array([70_000, 2]), masked, nowhere], multiple=3)
    ignored = IGNORE_INDEX
    assert packed.token_t.tolist() == [70_000, 2, 5, 6, 7, 8, 3, 4, PADDING_TOKEN]
    assert packed.target_t.tolist() == [2, ignored, ignored, 7, 8, ignored, ignored, ignored, ignored]
    assert packed.num_targets == 3


def test_a_mask_of_another_length_is_refused() -> None:
    with refused("micro_batch_invalid", "sequences[0]", "2 tokens", "mask of 3"):
        collate([MaskedTokens(np.array([1, 2]), np.ones(3, dtype=bool))], multiple=1)


@pytest.mark.parametrize(
    ("sequences", "multiple", "part"),
    [([], 1, "0 entries"), ([b"a", b""], 1, "sequences[1] has 0 tokens"), ([b"a"], 0, "multiple = 0")],
)
def test_invalid_arguments_are_refused(sequences: list[bytes], multiple: int, part: str) -> None:
    with refused("micro_batch_invalid", part):
        collate(arrays_of(sequences), multiple=multiple)
