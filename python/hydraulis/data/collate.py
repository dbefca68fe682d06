"""Packs the sequences of one micro-batch end to end into the tensors of a model.

Padding is only at the end, as a segment of its own: attention never crosses into it, and it is never a
target.

Legend: T tokens of the packed micro-batch with padding, t tokens of them on one rank.
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
        token_t: Tokens, int64 [t].
        target_t: Next token of the same sequence, int64 [t]; `IGNORE_INDEX` for tokens without a target.
        sequences: Sequences of the tokens, with the padding as the last one.
        num_tokens: T, the tokens of the whole micro-batch.
        num_targets: Targets of the whole micro-batch.
    """

    token_t: torch.Tensor
    target_t: torch.Tensor
    sequences: Sequences
    num_tokens: int
    num_targets: int


class TokenShare(Protocol):
    """The assignment of a micro-batch's tokens to context-parallel ranks."""

    def share(self, whole: PackedSequences) -> tuple[torch.Tensor, Sequences]:
        """Return the index of each of this rank's tokens in the micro-batch, and their sequences."""


def collate(
    sequences: Sequence[SequenceTokens],
    *,
    multiple: int,
    shared: TokenShare | None = None,
    device: torch.device = CPU,
    attention: AttentionKind = "auto",
) -> PackedMicroBatch:
    """Pack sequences end to end in the given order, pad the end, and take this rank's tokens.

    Args:
        sequences: Tokens of each sequence; a loss mask restricts their targets.
        multiple: Divisor of the padded length T.
        shared: Assignment of the tokens to ranks; None for all tokens.
        device: Device of the micro-batch; the host does not wait for the copy.
        attention: Attention kernel of the packed sequences.

    Returns:
        The micro-batch.

    Raises:
        InvalidInputError: There is no sequence, a sequence is empty or has a mask of another length, or
            `multiple` is less than 1 (code `micro_batch_invalid`).
    """
    _check(sequences, multiple)
    lengths = [len(sequence) for sequence in sequences]
    num_tokens = sum(lengths)
    num_padding = -num_tokens % multiple
    token = np.full(num_tokens + num_padding, PADDING_TOKEN, dtype=np.int64)
    np.concatenate([plain_tokens(sequence) for sequence in sequences], out=token[:num_tokens])
    segments = (*lengths, num_padding) if num_padding else tuple(lengths)
    whole = PackedSequences.from_lengths(segments, device, attention)
    index_t, packed = (slice(None), whole) if shared is None else shared.share(whole)
    return PackedMicroBatch(
        token_t=to_device(torch.from_numpy(token), device)[index_t],
        target_t=to_device(torch.from_numpy(_targets(token, sequences, lengths)), device)[index_t],
        sequences=packed,
        num_tokens=len(token),
        num_targets=sum(count_targets(sequence) for sequence in sequences),
    )


def _targets(
    token: npt.NDArray[np.int64], sequences: Sequence[SequenceTokens], lengths: Sequence[int]
) -> npt.NDArray[np.int64]:
    end = np.cumsum(lengths)
    target = np.full_like(token, IGNORE_INDEX)
    target[: end[-1] - 1] = token[1 : end[-1]]
    target[end - 1] = IGNORE_INDEX
    for sequence, stop in zip(sequences, end, strict=True):
        if isinstance(sequence, MaskedTokens):
            # Position i - 1 predicts token i; the slice is a view.
            target[stop - len(sequence) : stop - 1][~sequence.loss_mask[1:]] = IGNORE_INDEX
    return target


def _check(sequences: Sequence[SequenceTokens], multiple: int) -> None:
    if not sequences:
        message = "sequences has 0 entries and must have at least 1; leave empty micro-batches out"
        raise InvalidInputError(message, code="micro_batch_invalid")
    for index, sequence in enumerate(sequences):
        if len(sequence) == 0:
            message = f"sequences[{index}] has 0 tokens and must have at least 1; leave the sequence out"
            raise InvalidInputError(message, code="micro_batch_invalid")
        if isinstance(sequence, MaskedTokens) and len(sequence.loss_mask) != len(sequence):
            message = (
                f"sequences[{index}] has {len(sequence)} tokens and a mask of {len(sequence.loss_mask)}; "
                "give one value for each token"
            )
            raise InvalidInputError(message, code="micro_batch_invalid")
    if multiple < 1:
        message = f"multiple = {multiple} must be at least 1; use 1 for no padding"
        raise InvalidInputError(message, code="micro_batch_invalid")
