from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from helpers import refused
from hydraulis.config.data import TooLong
from hydraulis.data.context_limit import SequenceSlices, slice_documents
from hydraulis.data.corpus import Corpus
from hydraulis.data.tokens import count_targets, plain_tokens

LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=12)


def corpus_of(lengths: list[int], *, masked: bool = False) -> Corpus:
    offset = np.cumsum([0, *lengths], dtype=np.int64)
    counts = np.random.default_rng(len(lengths)).random(offset[-1]) < 0.3 if masked else None
    return Corpus(token_T=np.arange(offset[-1]), offset=offset, loss_mask_T=counts)


def pieces(corpus: Corpus, cut: SequenceSlices) -> list[list[int]]:
    ends = cut.start + cut.lengths
    return [
        plain_tokens(corpus.slice(int(start), int(end))).tolist()
        for start, end in zip(cut.start, ends, strict=True)
    ]


@given(
    LENGTHS,
    st.integers(2, 12),
    st.sampled_from(["split", "truncate"]),
    st.sampled_from(["", "mask"]),
    st.data(),
)
def test_a_limited_corpus_equals_each_document_cut_alone(
    lengths: list[int], limit: int, too_long: TooLong, mask: str, data: Any
) -> None:
    corpus = corpus_of(lengths, masked=bool(mask))
    chosen = sorted(data.draw(st.sets(st.integers(0, len(lengths) - 1)))) or None
    documents = range(len(lengths)) if chosen is None else chosen
    expected: list[list[int]] = []
    untrained = lost = 0
    for document in documents:
        tokens = plain_tokens(corpus.read(document)).tolist()
        parts = [tokens[first : first + limit] for first in range(0, len(tokens), limit)]
        if too_long == "truncate":
            lost += len(tokens) - len(parts[0])
            parts = parts[:1]
        for part in parts:
            if count_targets(corpus.slice(part[0], part[-1] + 1)):
                expected.append(part)
            else:
                untrained += 1
    cut = slice_documents(corpus, limit, too_long, None if chosen is None else np.array(chosen))
    assert pieces(corpus, cut) == expected
    assert cut.target_counts.tolist() == [count_targets(corpus.slice(p[0], p[-1] + 1)) for p in expected]
    assert (cut.num_untrained, cut.num_lost_tokens) == (untrained, lost)
    assert cut.num_too_long == sum(lengths[document] > limit for document in documents)


def test_without_a_cut_the_arrays_are_those_of_the_corpus() -> None:
    corpus = corpus_of([3, 5, 2])
    cut = slice_documents(corpus, 5, "refuse")
    assert np.shares_memory(cut.lengths, corpus.lengths)
    assert np.shares_memory(cut.start, corpus.offset)
    assert np.shares_memory(cut.target_counts, corpus.target_counts)


def test_too_long_documents_are_refused_on_request() -> None:
    with refused("sequence_too_long", "2 documents", "= 4", 7):
        slice_documents(corpus_of([5, 3, 7]), 4, "refuse")
