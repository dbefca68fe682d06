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
from hydraulis.data.tokens import MaskedTokens, SequenceTokens, check_mask, count_targets, plain_tokens
from hydraulis.errors import InvalidInputError
from hydraulis.model.sequences import IGNORE_INDEX, PackedSequences, Sequences
from hydraulis.model.tensors import empty_on_host

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

    @property
    def num_own_tokens(self) -> int:
        """Tokens of this rank, t."""
        return len(self.token_t)


class TokenShare(Protocol):
    """The assignment of a micro-batch's tokens to context-parallel ranks."""

    def share(self, whole: PackedSequences) -> tuple[torch.Tensor, Sequences]:
        """Return the index of each of this rank's tokens in the micro-batch, and their sequences."""


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatchLayout:
    """A micro-batch with its segments, whose tokens are read later.

    Attributes:
        num_own_tokens: Tokens of this rank, t.
    """

    num_own_tokens: int
    _lengths: Sequence[int]
    _num_tokens: int
    _index_t: torch.Tensor | slice
    _sequences: Sequences
    # Pinned memory for the copies of tokens and targets to the device; none on the CPU.
    _pinned_T: Sequence[torch.Tensor]
    _device: torch.device

    def fill(self, sequences: Sequence[SequenceTokens]) -> PackedMicroBatch:
        """Pack the sequences; called once. On CUDA the host neither waits nor allocates pinned memory.

        Args:
            sequences: Tokens of each sequence, of the lengths of the layout; a loss mask restricts their
                targets.

        Raises:
            InvalidInputError: A mask has another length than its sequence (code `micro_batch_invalid`).
        """
        _check_masks(sequences)
        token = np.full(self._num_tokens, PADDING_TOKEN, dtype=np.int64)
        np.concatenate([plain_tokens(sequence) for sequence in sequences], out=token[: sum(self._lengths)])
        host = torch.from_numpy(token), torch.from_numpy(_targets(token, sequences, self._lengths))
        pairs = zip(self._pinned_T, host, strict=False)
        token_T, target_T = [
            pinned.copy_(x).to(self._device, non_blocking=True) for pinned, x in pairs
        ] or host
        return PackedMicroBatch(
            token_t=token_T[self._index_t],
            target_t=target_T[self._index_t],
            sequences=self._sequences,
            num_tokens=self._num_tokens,
            num_targets=sum(count_targets(sequence) for sequence in sequences),
        )


def lay_out(
    lengths: Sequence[int],
    *,
    multiple: int,
    shared: TokenShare | None = None,
    device: torch.device = CPU,
    attention: AttentionKind = "auto",
) -> MicroBatchLayout:
    """Lay out a micro-batch of sequences of these lengths; the other arguments and errors are `collate`'s.

    Args:
        lengths: Tokens of each sequence.
        multiple: Divisor of the padded length T.
        shared: Assignment of the tokens to ranks; None for all tokens.
        device: Device of the micro-batch.
        attention: Attention kernel of the packed sequences.
    """
    _check(lengths, multiple)
    lengths = list(map(int, lengths))
    num_padding = -sum(lengths) % multiple
    segments = (*lengths, num_padding) if num_padding else tuple(lengths)
    whole = PackedSequences.from_lengths(segments, device, attention)
    index_t, packed = (slice(None), whole) if shared is None else shared.share(whole)
    num_pinned = 2 if device.type == "cuda" else 0
    return MicroBatchLayout(
        num_own_tokens=whole.num_tokens if isinstance(index_t, slice) else len(index_t),
        _lengths=lengths,
        _num_tokens=whole.num_tokens,
        _index_t=index_t,
        _sequences=packed,
        _pinned_T=[empty_on_host([whole.num_tokens], torch.int64, is_pinned=True) for _ in range(num_pinned)],
        _device=device,
    )


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
    layout = lay_out(
        list(map(len, sequences)), multiple=multiple, shared=shared, device=device, attention=attention
    )
    return layout.fill(sequences)


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


def _check(lengths: Sequence[int], multiple: int) -> None:
    if not lengths:
        message = "sequences has 0 entries and must have at least 1; leave empty micro-batches out"
        raise InvalidInputError(message, code="micro_batch_invalid")
    for index, length in enumerate(lengths):
        if length == 0:
            message = f"sequences[{index}] has 0 tokens and must have at least 1; leave the sequence out"
            raise InvalidInputError(message, code="micro_batch_invalid")
    if multiple < 1:
        message = f"multiple = {multiple} must be at least 1; use 1 for no padding"
        raise InvalidInputError(message, code="micro_batch_invalid")


def _check_masks(sequences: Sequence[SequenceTokens]) -> None:
    for index, sequence in enumerate(sequences):
        check_mask(f"sequences[{index}]", sequence)
