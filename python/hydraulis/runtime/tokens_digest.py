"""The digest of one sequence's tokens, by which ranks compare what they read."""

import numpy as np

from hydraulis.data.tokens import MaskedTokens, SequenceTokens, plain_tokens
from hydraulis.runtime.ranks.agreement import digest_of


def tokens_digest(sequence: SequenceTokens) -> int:
    """Return a digest of a sequence's tokens and loss mask."""
    mask = sequence.loss_mask.tobytes() if isinstance(sequence, MaskedTokens) else b""
    return digest_of(np.ascontiguousarray(plain_tokens(sequence)).tobytes(), mask)
