"""What becomes of documents that are longer than a sequence may be, and of those that train nothing.

Lengths and target counts suffice for it; only where a loss mask goes with the tokens, those of the documents
that are too long are looked at.
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
    """The sequences that documents of one corpus become.

    Attributes:
        start: where each starts among the tokens of the corpus.
        lengths: tokens of each.
        target_counts: targets of each, at least 1.
        num_documents: that were looked at.
        num_too_long: documents longer than the limit.
        num_lost_tokens: that `truncate` dropped.
        num_untrained: sequences left out because they hold no target.
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

    A document that is split becomes pieces of `max_tokens` tokens and a last shorter one, one after another;
    the first token of each piece is predicted by nothing, as that of a document.

    Args:
        corpus: the documents.
        max_tokens: the limit, at least 2.
        too_long: what becomes of a longer document.
        documents: which of them, in rising order; None for all.

    Raises:
        InvalidInputError: a document is too long, and that is to be refused (code `sequence_too_long`).
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
        start, lengths, targets = _cut(corpus, start, lengths, targets, pieces, max_tokens)
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


def _cut(
    corpus: Corpus, start: Integers, lengths: Integers, targets: Integers, pieces: Integers, max_tokens: int
) -> tuple[Integers, Integers, Integers]:
    """Cut each document into so many pieces; what is beyond the last one is lost."""
    document = np.repeat(np.arange(len(lengths)), pieces)
    number = np.arange(len(document)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    piece_start = start[document] + number * max_tokens
    piece_length = np.minimum(lengths[document] - number * max_tokens, max_tokens)
    piece_targets = targets[document]
    cut = np.flatnonzero(lengths[document] > max_tokens)
    if corpus.loss_mask_T is None:
        piece_targets[cut] = piece_length[cut] - 1
    else:
        for index in cut:
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
