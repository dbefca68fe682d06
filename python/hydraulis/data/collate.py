"""Packs the documents of one micro-batch end to end into the tensors a model takes.

Padding stands at the end only, as a segment of its own: attention never crosses into it, and it is never a
target.

Legend: T tokens of the packed micro-batch, padding included, t those of them that a rank holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from hydraulis.config.kinds import AttentionKind
from hydraulis.data.tokens import MaskedTokens, SequenceTokens, count_targets, plain_tokens
from hydraulis.errors import InvalidInputError
from hydraulis.model.sequences import IGNORE_INDEX, PackedSequences, Sequences
from hydraulis.model.tensors import to_device

PADDING_TOKEN = 0
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PackedMicroBatch:
    """One micro-batch, or a rank's share of it.

    Attributes:
        token_t: the tokens, as int64.
        target_t: the next token of the same document, as int64; `IGNORE_INDEX` where there is none, or where
            it does not count.
        sequences: which of the documents, and of the padding behind them, the tokens belong to.
        num_tokens: T, of the whole micro-batch.
        num_targets: how many tokens of the whole micro-batch have a target.
    """

    token_t: torch.Tensor
    target_t: torch.Tensor
    sequences: Sequences
    num_tokens: int
    num_targets: int


class TokenShare(Protocol):
    """Shares the tokens of a micro-batch out over ranks."""

    def share(self, whole: PackedSequences) -> tuple[torch.Tensor, Sequences]:
        """Give the place of each of this rank's tokens, and the sequences that they belong to."""


def collate(
    documents: Sequence[SequenceTokens],
    *,
    multiple: int,
    shared: TokenShare | None = None,
    device: torch.device = CPU,
    attention: AttentionKind = "auto",
) -> PackedMicroBatch:
    """Pack documents end to end, in the given order, pad the end, and take this rank's tokens.

    Args:
        documents: the tokens of each; where a mask goes with them, only those that it names are targets.
        multiple: the packed length is the next multiple of this.
        shared: says which tokens are this rank's; None if all are.
        device: where the micro-batch goes; the host does not wait until it is there.
        attention: the kernel by which its sequences attend.

    Returns:
        The micro-batch.

    Raises:
        InvalidInputError: there is no document, one of them is empty or has a mask of another length, or
            `multiple` is less than 1 (code `micro_batch_invalid`).
    """
    _check(documents, multiple)
    lengths = [len(document) for document in documents]
    num_tokens = sum(lengths)
    num_padding = -num_tokens % multiple
    token = np.full(num_tokens + num_padding, PADDING_TOKEN, dtype=np.int64)
    np.concatenate([plain_tokens(document) for document in documents], out=token[:num_tokens])
    segments = (*lengths, num_padding) if num_padding else tuple(lengths)
    whole = PackedSequences.from_lengths(segments, device, attention)
    index_t, sequences = (slice(None), whole) if shared is None else shared.share(whole)
    return PackedMicroBatch(
        token_t=to_device(torch.from_numpy(token), device)[index_t],
        target_t=to_device(torch.from_numpy(_targets(token, documents, lengths)), device)[index_t],
        sequences=sequences,
        num_tokens=len(token),
        num_targets=sum(count_targets(document) for document in documents),
    )


def _targets(
    token: npt.NDArray[np.int64], documents: Sequence[SequenceTokens], lengths: Sequence[int]
) -> npt.NDArray[np.int64]:
    end = np.cumsum(lengths)
    target = np.full_like(token, IGNORE_INDEX)
    target[: end[-1] - 1] = token[1 : end[-1]]
    target[end - 1] = IGNORE_INDEX
    for document, stop in zip(documents, end, strict=True):
        if isinstance(document, MaskedTokens):
            # A view: what predicts token i stands at place i - 1.
            target[stop - len(document) : stop - 1][~document.loss_mask[1:]] = IGNORE_INDEX
    return target


def _check(documents: Sequence[SequenceTokens], multiple: int) -> None:
    if not documents:
        message = "documents has 0 entries and must have at least 1; leave empty micro-batches out"
        raise InvalidInputError(message, code="micro_batch_invalid")
    for index, document in enumerate(documents):
        if len(document) == 0:
            message = f"documents[{index}] has 0 tokens and must have at least 1; leave the document out"
            raise InvalidInputError(message, code="micro_batch_invalid")
        if isinstance(document, MaskedTokens) and len(document.loss_mask) != len(document):
            message = (
                f"documents[{index}] has {len(document)} tokens and a mask of {len(document.loss_mask)}; "
                "give one value for each token"
            )
            raise InvalidInputError(message, code="micro_batch_invalid")
    if multiple < 1:
        message = f"multiple = {multiple} must be at least 1; use 1 for no padding"
        raise InvalidInputError(message, code="micro_batch_invalid")
