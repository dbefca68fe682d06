"""Packs the documents of one micro-batch end to end into the tensors a model takes.

T is the axis of packed tokens, padding included. Padding stands at the end only, as a segment of its own:
attention never crosses into it, and it is never a target.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from hydraulis.errors import InvalidInputError
from hydraulis.model.loss import IGNORE_INDEX
from hydraulis.model.packed import PackedSequences

PADDING_TOKEN = 0


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PackedMicroBatch:
    """One micro-batch, on the CPU.

    Attributes:
        token_T: the tokens, as int64.
        target_T: the next token of the same document, as int64; `IGNORE_INDEX` where there is none.
        sequences: where the documents, and the padding behind them, start and end.
        num_targets: how many tokens have a target.
    """

    token_T: torch.Tensor
    target_T: torch.Tensor
    sequences: PackedSequences
    num_targets: int


def collate(token_arrays: Sequence[npt.NDArray[np.uint8]], *, multiple: int) -> PackedMicroBatch:
    """Pack documents end to end, in the given order, and pad the end.

    Args:
        token_arrays: the tokens of each document.
        multiple: the packed length is the next multiple of this.

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
    return PackedMicroBatch(
        token_T=torch.from_numpy(token),
        target_T=torch.from_numpy(_targets(token, lengths)),
        sequences=PackedSequences.from_lengths(
            (*lengths, num_padding) if num_padding else tuple(lengths), torch.device("cpu")
        ),
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
