"""Sequences from documents: the treatment of too long documents and of documents without a target.

Lengths and target counts suffice. Only for too long documents with a loss mask, the masks are read.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hydraulis.config.data import TooLong
from hydraulis.data.corpus import Corpus
from hydraulis.errors import InvalidInputError

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SequenceSlices:
    """The sequences of one corpus, as slices of its tokens.

    Attributes:
        start: First position of each sequence in the corpus, int64 [n].
        lengths: Tokens of each sequence, int64 [n].
        target_counts: Targets of each sequence, at least 1, int64 [n].
        num_documents: Number of examined documents.
        num_too_long: Number of documents above the limit.
        num_lost_tokens: Number of tokens that `truncate` dropped.
        num_untrained: Number of sequences left out because they have no target.
    """

    start: Integers
    lengths: Integers
    target_counts: Integers
    num_documents: int
    num_too_long: int
    num_lost_tokens: int
    num_untrained: int


def slice_documents(
    corpus: Corpus, max_tokens: int, too_long: TooLong, documents: Integers | None = None
) -> SequenceSlices:
    """Make sequences of at most `max_tokens` tokens from documents.

    A split document becomes consecutive pieces of `max_tokens` tokens and a last shorter one. The first token
    of a piece is not a target, like the first token of a document.

    Args:
        corpus: Corpus with the documents.
        max_tokens: Maximum tokens of a sequence, at least 2.
        too_long: Treatment of longer documents.
        documents: Indices of the documents to use, in rising order; None for all.

    Raises:
        InvalidInputError: A document is too long and `too_long` is `refuse` (code `sequence_too_long`).
    """
    start, lengths, targets = corpus.offset[:-1], corpus.lengths, corpus.target_counts
    if documents is not None:
        start, lengths, targets = start[documents], lengths[documents], targets[documents]
    num_documents = len(lengths)
    long = np.flatnonzero(lengths > max_tokens)
    lost = 0
    if len(long):
        if too_long == "refuse":
            raise _refusal(long, lengths, max_tokens)
        if too_long == "truncate":
            lost = int((lengths[long] - max_tokens).sum())
        pieces = np.ones(len(lengths), dtype=np.int64)
        if too_long == "split":
            pieces[long] = -(-lengths[long] // max_tokens)
        start, lengths, targets = _split(corpus, start, lengths, targets, pieces, max_tokens)
    trained = targets > 0
    untrained = len(trained) - int(np.count_nonzero(trained))
    if untrained:
        start, lengths, targets = start[trained], lengths[trained], targets[trained]
    return SequenceSlices(
        start=start,
        lengths=lengths,
        target_counts=targets,
        num_documents=num_documents,
        num_too_long=len(long),
        num_lost_tokens=lost,
        num_untrained=untrained,
    )


def _split(
    corpus: Corpus, start: Integers, lengths: Integers, targets: Integers, pieces: Integers, max_tokens: int
) -> tuple[Integers, Integers, Integers]:
    """Split each document into its number of pieces; tokens beyond the last piece are dropped."""
    document = np.repeat(np.arange(len(lengths)), pieces)
    number = np.arange(len(document)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    piece_start = start[document] + number * max_tokens
    piece_length = np.minimum(lengths[document] - number * max_tokens, max_tokens)
    piece_targets = targets[document]
    split = np.flatnonzero(lengths[document] > max_tokens)
    if corpus.loss_mask_T is None:
        piece_targets[split] = piece_length[split] - 1
    else:
        for index in split:
            first = int(piece_start[index])
            inside = corpus.loss_mask_T[first + 1 : first + int(piece_length[index])]
            piece_targets[index] = np.count_nonzero(inside)
    return piece_start, piece_length, piece_targets


def _refusal(long: Integers, lengths: Integers, max_tokens: int) -> InvalidInputError:
    message = (
        f"{len(long)} documents are longer than data.max_tokens = {max_tokens}, the longest has "
        f'{lengths[long].max()} tokens: set data.too_long to "split" or "truncate", or raise data.max_tokens'
    )
    return InvalidInputError(message, code="sequence_too_long")
