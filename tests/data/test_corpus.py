import hashlib
from typing import Any

import numpy as np
import pytest

from helpers import refused
from hydraulis.data.corpus import Corpus
from hydraulis.data.tokens import MaskedTokens, count_targets, plain_tokens


def corpus_of(*documents: bytes) -> Corpus:
    return Corpus(
        token_T=np.frombuffer(b"".join(documents), dtype=np.uint8),
        offset=np.cumsum([0, *map(len, documents)], dtype=np.int64),
    )


def test_stored_documents_are_read_back_equal() -> None:
    documents = [b"def f(): pass\n", b"x", b"async def g(): ...\n"]
    corpus = corpus_of(*documents)
    assert len(corpus) == 3
    assert [plain_tokens(corpus.read(i)).tobytes() for i in range(3)] == documents


def test_lengths_and_target_counts() -> None:
    corpus = corpus_of(b"abc", b"d", b"ef")
    assert corpus.lengths.dtype == np.int64
    assert corpus.lengths.tolist() == [3, 1, 2]
    assert corpus.target_counts.tolist() == [2, 0, 1]
    assert corpus.lengths is corpus.lengths


@pytest.mark.parametrize("index", [-1, 2])
def test_refuses_a_document_beyond_the_last(index: int) -> None:
    with pytest.raises(IndexError, match=rf"{index}\b.*\b2\b"):
        corpus_of(b"a", b"b").read(index)


def test_views_cannot_change_the_corpus() -> None:
    corpus = Corpus(token_T=np.zeros(4, dtype=np.uint8), offset=np.array([0, 4]))
    for array in (plain_tokens(corpus.read(0)), corpus.offset, corpus.lengths, corpus.target_counts):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_the_arrays_of_the_caller_stay_writable() -> None:
    tokens = np.zeros(4, dtype=np.uint8)
    Corpus(token_T=tokens, offset=np.array([0, 4]))
    tokens[0] = 1


def test_tokens_are_views_not_copies() -> None:
    corpus = corpus_of(b"abc", b"de")
    assert np.shares_memory(plain_tokens(corpus.read(1)), corpus.token_T)


def test_a_mask_of_another_length_or_kind_is_refused() -> None:
    given: list[tuple[Any, str]] = [
        (np.ones(3, dtype=bool), "3 values for 4"),
        (np.ones(4), "loss_mask_T is 1-dimensional float64"),
    ]
    for loss_mask, message in given:
        with refused("data_file_invalid", message):
            Corpus(token_T=np.zeros(4, dtype=np.uint8), offset=np.array([0, 4]), loss_mask_T=loss_mask)


def test_fingerprint_covers_the_tokens_and_the_cuts() -> None:
    fingerprints = {
        corpus_of(*documents).fingerprint for documents in ([b"ab", b"c"], [b"a", b"bc"], [b"ab", b"d"])
    }
    assert len(fingerprints) == 3
    assert corpus_of(b"ab", b"c").fingerprint in fingerprints


def test_fingerprint_is_the_same_on_every_machine() -> None:
    one_document = b"abc" + (0).to_bytes(8, "little") + (3).to_bytes(8, "little")
    assert corpus_of(b"abc").fingerprint == hashlib.sha256(one_document).hexdigest()


def test_a_mask_stays_with_its_tokens() -> None:
    loss_mask = np.array([1, 0, 1, 1, 1, 0], dtype=bool)
    corpus = Corpus(token_T=np.arange(6), offset=np.array([0, 3, 4, 6]), loss_mask_T=loss_mask)
    documents = [corpus.read(index) for index in range(3)]
    assert all(isinstance(document, MaskedTokens) for document in documents)
    assert [count_targets(document) for document in documents] == [1, 0, 0]
    assert corpus.target_counts.tolist() == [1, 0, 0]
    plain = Corpus(token_T=np.arange(6), offset=np.array([0, 3, 4, 6]))
    assert plain.target_counts.tolist() == [2, 0, 1]
    assert plain.fingerprint != corpus.fingerprint


@pytest.mark.parametrize(
    ("tokens", "offset", "code", "message"),
    [
        (np.zeros(2), np.array([0, 2]), "data_file_invalid", "token_T is 1-dimensional float64"),
        (np.zeros((1, 2), np.uint8), np.array([0, 2]), "data_file_invalid", "token_T is 2-dimensional uint8"),
        (
            np.zeros(2, np.uint8),
            np.array([0, 2], np.int32),
            "data_file_invalid",
            "offset is 1-dimensional int32",
        ),
        (np.zeros(0, np.uint8), np.array([0]), "corpus_empty", "0 documents"),
        (np.zeros(2, np.uint8), np.array([1, 2]), "data_file_invalid", "from 1 to 2"),
        (np.zeros(2, np.uint8), np.array([0, 3]), "data_file_invalid", "from 0 to 3"),
        (np.zeros(2, np.uint8), np.array([0, 1, 1, 2]), "data_file_invalid", "document 1"),
    ],
)
def test_inconsistent_arrays_are_refused(
    tokens: np.ndarray, offset: np.ndarray, code: str, message: str
) -> None:
    with refused(code, message):
        Corpus(token_T=tokens, offset=offset)
