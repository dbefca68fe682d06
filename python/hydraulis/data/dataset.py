"""The sequences of a run, made from the documents of one or more corpora.

Planning needs lengths and target counts, which are arrays. Tokens are read one sequence at a time, after a
plan has assigned the sequence to a rank. If no document is too long, held out or without a target, the arrays
are those of the corpus, and stay mapped from files.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hydraulis.data.context_limit import SequenceSlices
from hydraulis.data.corpus import Corpus
from hydraulis.data.index.broken_records import MAX_LISTED, describe_left_out
from hydraulis.data.tokens import SequenceTokens
from hydraulis.data.unigram_entropy import compute_unigram_entropy
from hydraulis.errors import InvalidInputError
from hydraulis.text.values import format_count

# Largest corpus to scan for tokens beyond the vocabulary, in 0.1 s plus reading; others are checked by batch.
_MAX_SCANNED_TOKENS = 1 << 27

Integers = npt.NDArray[np.int64]


class SequenceSource(Protocol):
    """Sequences of the training loop: lengths and target counts of all, and the tokens of each."""

    @property
    def lengths(self) -> Integers:
        """Number of tokens of each sequence, int64 [n]."""

    @property
    def target_counts(self) -> Integers:
        """Number of targets of each sequence, int64 [n]."""

    def read(self, index: int, /) -> SequenceTokens:
        """Return the tokens of one sequence."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """Sequences of one or more corpora, in the order of the corpora.

    Attributes:
        corpora: Corpora with the tokens.
        slices: Sequences of each corpus.
        sources: Index of each corpus's source, in rising order; by default each corpus is a source.
        weights: Share of each source with sequences in the tokens of an epoch; None if each sequence occurs
            once per epoch.
        key: Key of the configuration that has the sources, for messages.
        settings: Other settings that determine the sequences, as JSON values; for the fingerprint.

    Raises:
        InvalidInputError: A source has no sequence (code `corpus_empty`).
    """

    corpora: Sequence[Corpus]
    slices: Sequence[SequenceSlices]
    sources: Sequence[int] = ()
    weights: Sequence[float] | None = None
    key: str = "data.sources"
    settings: object = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "sources", self.sources or range(len(self.corpora)))
        for source in dict.fromkeys(self.sources):
            self._check_source([number for number, one in enumerate(self.sources) if one == source])

    def _check_source(self, corpora: Sequence[int]) -> None:
        """Refuse a source without a sequence; one of its corpora may have none."""
        if not any(len(self.slices[number].lengths) for number in corpora):
            documents = sum(len(self.corpora[number]) for number in corpora)
            message = (
                f"{self.key}[{self.sources[corpora[0]]}] has {format_count(documents, 'document')} and no "
                "sequence with a target; check its files and the tokens that count in the loss"
            )
            raise InvalidInputError(message, code="corpus_empty")

    def __len__(self) -> int:
        return int(self.bounds[-1])

    @cached_property
    def bounds(self) -> Integers:
        """First sequence of each corpus, and the number of sequences at the end, int64 [corpora + 1]."""
        return np.cumsum([0, *(len(one.lengths) for one in self.slices)], dtype=np.int64)

    @cached_property
    def source_bounds(self) -> Integers:
        """First sequence of each source, and the number of sequences at the end, int64 [sources + 1]."""
        first = np.flatnonzero(np.diff(self.sources, prepend=-1))
        return np.append(self.bounds[first], self.bounds[-1])

    @cached_property
    def lengths(self) -> Integers:
        """Number of tokens of each sequence, int64 [n]."""
        return _joined([one.lengths for one in self.slices])

    @cached_property
    def target_counts(self) -> Integers:
        """Number of targets of each sequence, at least 1, int64 [n]."""
        return _joined([one.target_counts for one in self.slices])

    def read(self, index: int) -> SequenceTokens:
        """Return the tokens of one sequence, with the loss mask if there is one.

        Raises:
            IndexError: The index is out of range.
        """
        if not 0 <= index < len(self):
            message = f"sequence {index} must be one of the {len(self)} there are; count them from 0"
            raise IndexError(message)
        number = int(np.searchsorted(self.bounds, index, side="right")) - 1
        place = index - int(self.bounds[number])
        start = int(self.slices[number].start[place])
        return self.corpora[number].slice(start, start + int(self.slices[number].lengths[place]))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the corpora and of the settings that make sequences from them."""
        facts = [[corpus.fingerprint for corpus in self.corpora], self.weights, self.settings]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse tokens beyond the vocabulary, if the largest token is known or quickly found.

        Raises:
            InvalidInputError: A source has such a token (code `token_out_of_range`).
        """
        for source, corpus in zip(self.sources, self.corpora, strict=True):
            largest = corpus.known_largest_token
            if largest is not None:
                check_largest_token(f"{self.key}[{source}] holds token", largest, vocab_size)
            elif len(corpus.token_T) <= _MAX_SCANNED_TOKENS:
                place = f"{self.key}[{source}]"
                if corpus.files:
                    place = f"'{corpus.files[0].path}' ({place})"
                _check_tokens(corpus, place, vocab_size)

    @property
    def num_broken(self) -> int:
        """Number of unreadable records that were left out."""
        return sum(corpus.left_out.get("broken_records", 0) for corpus in self.corpora)

    def describe_broken(self) -> str:
        """Describe the unreadable records and the places of the first; an empty string without any."""
        first = [place for corpus in self.corpora for place in corpus.first_broken]
        return describe_left_out(self.num_broken, first[:MAX_LISTED]) if self.num_broken else ""

    def count_documents(self) -> dict[str, int]:
        """Count the documents and every item that is held out, cut or left out."""
        documents = sum(one.num_documents for one in self.slices)
        left_out: dict[str, int] = {}
        for corpus in self.corpora:
            for kind, count in corpus.left_out.items():
                left_out[kind] = left_out.get(kind, 0) + count
        return {
            "documents": documents,
            "held_out": sum(len(corpus) for corpus in self.corpora) - documents,
            "too_long": sum(one.num_too_long for one in self.slices),
            "lost_tokens": sum(one.num_lost_tokens for one in self.slices),
            "without_target": sum(one.num_untrained for one in self.slices),
            **left_out,
        }

    def describe(self) -> dict[str, int | float | str]:
        """Return the statistics for the log of a run; reads some of the tokens."""
        # By nearest rank, as in the analysis.
        median, p99 = np.percentile(self.lengths, (50, 99), method="inverted_cdf")
        return {
            "sources": len(set(self.sources)),
            **self.count_documents(),
            "sequences": len(self),
            "tokens": int(self.lengths.sum()),
            "targets": int(self.target_counts.sum()),
            "median": int(median),
            "p99": int(p99),
            "longest": int(self.lengths.max()),
            "unigram_entropy_nats": compute_unigram_entropy(self),
            "fingerprint": self.fingerprint,
        }


def check_largest_token(subject: str, largest: int, vocab_size: int) -> None:
    """Refuse a token beyond the vocabulary of a model.

    Args:
        subject: Start of the message, which names the data of the token.
        largest: The largest token.
        vocab_size: Rows of the model's embedding.

    Raises:
        InvalidInputError: The token has no row (code `token_out_of_range`).
    """
    if largest >= vocab_size:
        message = (
            f"{subject} {largest}, and the limit is {vocab_size - 1}: use the tokenizer of the model, or "
            "raise model.vocab_size, unless model.path gives it"
        )
        raise InvalidInputError(message, code="token_out_of_range")


def _check_tokens(corpus: Corpus, source: str, vocab_size: int) -> None:
    """Scan all tokens, and refuse one beyond the vocabulary with its document."""
    for place in (int(corpus.token_T.argmin()), int(corpus.token_T.argmax())):
        token = int(corpus.token_T[place])
        if not 0 <= token < vocab_size:
            document = int(np.searchsorted(corpus.offset, place, side="right")) - 1
            message = (
                f"document {document:,} of {source}, counted from 0, holds token {token}, and the limits are "
                f"0 and {vocab_size - 1}: use the tokenizer of the model, correct the file, or raise "
                "model.vocab_size, unless model.path gives it"
            )
            raise InvalidInputError(message, code="token_out_of_range")


def _joined(arrays: Sequence[Integers]) -> Integers:
    # The array of a single corpus stays mapped.
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
