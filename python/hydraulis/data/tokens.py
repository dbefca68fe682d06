"""The tokens of one sequence and its loss mask.

In pre-training every token except the first is a target, and a plain array suffices. In fine-tuning only some
tokens are targets, such as the assistant's, and a loss mask marks them.
"""

import hashlib
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hydraulis.errors import InvalidInputError

Tokens: TypeAlias = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class MaskedTokens:
    """Tokens with a loss mask.

    Attributes:
        tokens: Tokens of the sequence, any integer dtype [n].
        loss_mask: Whether each token is a target, bool [n]. The first token has no prediction, so its value
            has no effect.
    """

    tokens: Tokens
    loss_mask: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.tokens)


SequenceTokens: TypeAlias = Tokens | MaskedTokens


def plain_tokens(sequence: SequenceTokens) -> Tokens:
    """Return the tokens without the loss mask."""
    return sequence.tokens if isinstance(sequence, MaskedTokens) else sequence


def count_targets(sequence: SequenceTokens) -> int:
    """Count the targets of a sequence: the tokens in the loss, which a plan must have counted alike."""
    if isinstance(sequence, MaskedTokens):
        return int(np.count_nonzero(sequence.loss_mask[1:]))
    return max(0, len(sequence) - 1)


def check_mask(name: str, sequence: SequenceTokens) -> None:
    """Check that a loss mask has a value for each token.

    Raises:
        InvalidInputError: It has not (code `micro_batch_invalid`); the message begins with `name`.
    """
    if isinstance(sequence, MaskedTokens) and len(sequence.loss_mask) != len(sequence):
        message = (
            f"{name} has {len(sequence)} tokens and a mask of {len(sequence.loss_mask)}; give one value for "
            "each token"
        )
        raise InvalidInputError(message, code="micro_batch_invalid")


def digest_tokens(tokens: Tokens, loss_mask: npt.NDArray[np.bool_] | None) -> int:
    """Return 64 bits of the BLAKE2b of a document's tokens and its loss mask, if any, as they are stored."""
    digest = hashlib.blake2b(np.ascontiguousarray(tokens).data, digest_size=8)
    if loss_mask is not None:
        digest.update(np.ascontiguousarray(loss_mask).data)
    return int.from_bytes(digest.digest(), "little")
