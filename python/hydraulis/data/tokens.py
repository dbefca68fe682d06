"""The tokens of one sequence, and which of them count in the loss.

In pre-training every token but the first is a target: a plain array says all there is. In fine-tuning only
some are, such as what the assistant wrote: then a mask goes with the tokens.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Tokens: TypeAlias = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class MaskedTokens:
    """Tokens of which only some count in the loss.

    Attributes:
        tokens: of the sequence, of any integer dtype.
        counts: as bool, whether each of them counts when it is predicted. The first one is predicted by
            nothing: whatever stands there, it does not count.
    """

    tokens: Tokens
    counts: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.tokens)


SequenceTokens: TypeAlias = Tokens | MaskedTokens


def plain_tokens(sequence: SequenceTokens) -> Tokens:
    """Return the tokens alone."""
    return sequence.tokens if isinstance(sequence, MaskedTokens) else sequence


def count_targets(sequence: SequenceTokens) -> int:
    """Count the tokens that enter the loss: the targets that a plan must count for the sequence."""
    if isinstance(sequence, MaskedTokens):
        return int(np.count_nonzero(sequence.counts[1:]))
    return max(0, len(sequence) - 1)
