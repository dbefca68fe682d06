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

from hydraulis.errors import InvalidInputError
from hydraulis.model.loss import IGNORE_INDEX
from hydraulis.model.packed import PackedSequences
from hydraulis.model.sequences import Sequences

PADDING_TOKEN = 0


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PackedMicroBatch:
    """One micro-batch, or a rank's share of it, on the CPU.

    Attributes:
        token_t: the tokens, as int64.
        target_t: the next token of the same document, as int64; `IGNORE_INDEX` where there is none.
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
    token_arrays: Sequence[npt.NDArray[np.uint8]], *, multiple: int, shared: TokenShare | None = None
) -> PackedMicroBatch:
    """Pack documents end to end, in the given order, pad the end, and take this rank's tokens.

    Args:
        token_arrays: the tokens of each document.
        multiple: the packed length is the next multiple of this.
        shared: says which tokens are this rank's; None if all are.

    Returns:
        The micro-batch.

    Raises:
        InvalidInputError: there is no document, one of them is empty, or `multiple` is less than 1
            (code `collate_input`).
    """
    _check(token_arrays, multiple)
    lengths = [len(tokens) for tokens in token_arrays]
    num_tokens = sum(lengths)
    num_padding = -num_tokens % multiple
    token = np.full(num_tokens + num_padding, PADDING_TOKEN, dtype=np.int64)
    np.concatenate(token_arrays, out=token[:num_tokens])
    segments = (*lengths, num_padding) if num_padding else tuple(lengths)
    whole = PackedSequences.from_lengths(segments, torch.device("cpu"))
    index_t, sequences = (slice(None), whole) if shared is None else shared.share(whole)
    return PackedMicroBatch(
        token_t=torch.from_numpy(token)[index_t],
        target_t=torch.from_numpy(_targets(token, lengths))[index_t],
        sequences=sequences,
        num_tokens=len(token),
        num_targets=num_tokens - len(lengths),
    )


def _targets(token: npt.NDArray[np.int64], lengths: Sequence[int]) -> npt.NDArray[np.int64]:
    end = np.cumsum(lengths)
    target = np.full_like(token, IGNORE_INDEX)
    target[: end[-1] - 1] = token[1 : end[-1]]
    target[end - 1] = IGNORE_INDEX
    return target


def _check(token_arrays: Sequence[npt.NDArray[np.uint8]], multiple: int) -> None:
    if not token_arrays:
        message = "token_arrays holds 0 documents and must hold at least 1; leave empty micro-batches out"
        raise InvalidInputError(message, code="collate_input")
    for index, tokens in enumerate(token_arrays):
        if len(tokens) == 0:
            message = f"token_arrays[{index}] has 0 tokens and must have at least 1; leave the document out"
            raise InvalidInputError(message, code="collate_input")
    if multiple < 1:
        message = f"multiple = {multiple} must be at least 1; use 1 for no padding"
        raise InvalidInputError(message, code="collate_input")
