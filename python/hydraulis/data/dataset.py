"""The sequences of a run: those that the documents of one or more corpora become.

What planning needs, lengths and target counts, are arrays; tokens are read one sequence at a time, when a
plan has given it to a rank. Where no document is too long or held out, and none is without a target, the
arrays are those of the corpus, mapped if it is mapped.
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
from hydraulis.errors import InvalidInputError

# Tokens that nobody has seen yet, in 0.1 s and what reading takes; of more, each batch is looked at.
_MOST_LOOKED_THROUGH = 1 << 27

Integers = npt.NDArray[np.int64]


class SequenceSource(Protocol):
    """What the training loop asks for: lengths and target counts of all sequences, and the tokens of one."""

    @property
    def lengths(self) -> Integers:
        """The number of tokens of each sequence."""

    @property
    def target_counts(self) -> Integers:
        """The number of targets of each sequence."""

    def read(self, index: int, /) -> SequenceTokens:
        """Return the tokens of one sequence."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """Sequences of one or more corpora, those of the first corpus first.

    Attributes:
        corpora: where the tokens are.
        cuts: by corpus, the sequences that its documents become.
        sources: by corpus, the number of the source that it belongs to, in rising order; by default each
            corpus is one.
        weights: by source, its share of the tokens of an epoch; None if each sequence comes once per epoch.
        settings: whatever else decides which sequences there are, as JSON takes it; for the fingerprint.

    Raises:
        InvalidInputError: a corpus gives no sequence (code `corpus_empty`).
    """

    corpora: Sequence[Corpus]
    cuts: Sequence[SequenceSlices]
    sources: Sequence[int] = ()
    weights: Sequence[float] | None = None
    settings: object = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "sources", self.sources or range(len(self.corpora)))
        for number, cut in enumerate(self.cuts):
            if len(cut.lengths) == 0:
                message = (
                    f"data.sources[{self.sources[number]}] has {len(self.corpora[number])} documents and no "
                    "sequence with a target; check its files and the tokens that count in the loss"
                )
                raise InvalidInputError(message, code="corpus_empty")

    def __len__(self) -> int:
        return int(self.bounds[-1])

    @cached_property
    def bounds(self) -> Integers:
        """Where the sequences of each corpus start, and behind the last one how many there are."""
        return np.cumsum([0, *(len(cut.lengths) for cut in self.cuts)], dtype=np.int64)

    @cached_property
    def source_bounds(self) -> Integers:
        """Where the sequences of each source start, and behind the last one how many there are."""
        first = np.flatnonzero(np.diff(self.sources, prepend=-1))
        return np.append(self.bounds[first], self.bounds[-1])

    @cached_property
    def lengths(self) -> Integers:
        """The number of tokens of each sequence."""
        return _joined([cut.lengths for cut in self.cuts])

    @cached_property
    def target_counts(self) -> Integers:
        """The number of targets of each sequence, at least 1."""
        return _joined([cut.target_counts for cut in self.cuts])

    def read(self, index: int) -> SequenceTokens:
        """Return the tokens of one sequence, with their mask if there is one.

        Raises:
            IndexError: there is no such sequence.
        """
        if not 0 <= index < len(self):
            message = f"sequence {index} must be one of the {len(self)} there are; count them from 0"
            raise IndexError(message)
        number = int(np.searchsorted(self.bounds, index, side="right")) - 1
        place = index - int(self.bounds[number])
        start = int(self.cuts[number].start[place])
        return self.corpora[number].slice(start, start + int(self.cuts[number].lengths[place]))

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of what the corpora hold and of how sequences are made of it."""
        facts = [[corpus.fingerprint for corpus in self.corpora], self.weights, self.settings]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse tokens that a model has no row for, as far as they are known or soon looked through.

        Raises:
            InvalidInputError: a source holds one (code `token_out_of_range`).
        """
        for number, (source, corpus) in enumerate(zip(self.sources, self.corpora, strict=True)):
            largest = corpus.known_largest_token
            if largest is not None:
                check_largest_token(f"data.sources[{source}] holds token", largest, vocab_size)
            elif len(corpus.token_T) <= _MOST_LOOKED_THROUGH:
                file = f"file {number - self.sources.index(source)} of data.sources[{source}]"
                _check_tokens(corpus, file, vocab_size)

    @property
    def num_broken(self) -> int:
        """How many records were left out because they cannot be read."""
        return sum(corpus.left_out.get("broken_records", 0) for corpus in self.corpora)

    def broken_note(self) -> str:
        """Say how many these are and where the first of them stand; empty if there are none."""
        first = [place for corpus in self.corpora for place in corpus.first_broken]
        return describe_left_out(self.num_broken, first[:MAX_LISTED]) if self.num_broken else ""

    def account(self) -> dict[str, int]:
        """Count the documents, and all that is not trained as it stands in the files."""
        documents = sum(cut.num_documents for cut in self.cuts)
        left_out: dict[str, int] = {}
        for corpus in self.corpora:
            for what, count in corpus.left_out.items():
                left_out[what] = left_out.get(what, 0) + count
        return {
            "documents": documents,
            "held_out": sum(len(corpus) for corpus in self.corpora) - documents,
            "too_long": sum(cut.num_too_long for cut in self.cuts),
            "lost_tokens": sum(cut.num_lost_tokens for cut in self.cuts),
            "without_target": sum(cut.num_untrained for cut in self.cuts),
            **left_out,
        }

    def describe(self) -> dict[str, int | float | str]:
        """Return the statistics that belong in the log of a run; it reads some of the tokens."""
        # By nearest rank, as the analysis has them.
        median, p99 = np.percentile(self.lengths, (50, 99), method="inverted_cdf")
        return {
            "sources": len(set(self.sources)),
            **self.account(),
            "sequences": len(self),
            "tokens": int(self.lengths.sum()),
            "targets": int(self.target_counts.sum()),
            "median": int(median),
            "p99": int(p99),
            "longest": int(self.lengths.max()),
            "unigram_entropy_nats": self._unigram_entropy,
            "fingerprint": self.fingerprint,
        }

    @cached_property
    def _unigram_entropy(self) -> float:
        return self.corpora[0].unigram_entropy()


def check_largest_token(holds: str, largest: int, vocab_size: int) -> None:
    """Refuse a token that a model has no row for.

    Args:
        holds: what holds it, as the refusal is to begin.
        largest: token of that.
        vocab_size: rows of the model.

    Raises:
        InvalidInputError: there is no row for it (code `token_out_of_range`).
    """
    if largest >= vocab_size:
        message = (
            f"{holds} {largest}, and the limit is {vocab_size - 1}: use the tokenizer of the model, or raise "
            "model.vocab_size, unless model.path gives it"
        )
        raise InvalidInputError(message, code="token_out_of_range")


def _check_tokens(corpus: Corpus, file: str, vocab_size: int) -> None:
    """Look through all tokens, and name the document of one that there is no row for."""
    for place in (int(corpus.token_T.argmin()), int(corpus.token_T.argmax())):
        token = int(corpus.token_T[place])
        if not 0 <= token < vocab_size:
            document = int(np.searchsorted(corpus.offset, place, side="right")) - 1
            message = (
                f"document {document:,} of {file}, both counted from 0, holds token {token}, and the limits "
                f"are 0 and {vocab_size - 1}: use the tokenizer of the model, correct the file, or raise "
                "model.vocab_size, unless model.path gives it"
            )
            raise InvalidInputError(message, code="token_out_of_range")


def _joined(arrays: Sequence[Integers]) -> Integers:
    # One corpus alone stays mapped.
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
