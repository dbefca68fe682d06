"""Reads the sequences that a plan gives this rank, and compares each with what the plan counts.

A rank that stopped at a sequence it cannot read would leave the others in the middle of an iteration. So
zeros stand in for it, the iteration goes on in step, and afterwards every rank raises the same error.
"""

from collections.abc import Callable

import numpy as np

from hydraulis._core import Plan
from hydraulis.data.tokens import SequenceTokens, count_targets, plain_tokens
from hydraulis.errors import HydraulisError, InvalidInputError
from hydraulis.runtime.ranks.every_rank import raise_everywhere


class PlannedSequences:
    """The sequences of one plan, as this rank reads them.

    Args:
        plan: counts the tokens and the targets of each sequence.
        read: gives the tokens of a sequence of the batch, by its id.
        vocab_size: of the model; the tokens are below it.
    """

    def __init__(self, plan: Plan, read: Callable[[int], SequenceTokens], vocab_size: int) -> None:
        self._lengths, self._targets = plan.lengths, plan.targets
        self._read = read
        self._vocab_size = vocab_size
        self._error: HydraulisError | None = None

    def __call__(self, sequence: int) -> SequenceTokens:
        """Read a sequence; give zeros in its place if that fails, or if it is not what the plan counts."""
        try:
            tokens = self._read(sequence)
            self._check(sequence, tokens)
        except HydraulisError as error:
            self._error = self._error or error
            tokens = np.zeros(self._lengths[sequence], dtype=np.int64)
        return tokens

    def check(self) -> None:
        """Refuse the batch if any rank could not read one of its sequences. Collective.

        Raises:
            InvalidInputError: A sequence has another number of tokens or targets than the plan counts (code
                `plan_mismatch`), or a token outside the vocabulary (`token_out_of_range`); on every rank.
            HydraulisError: what reading raised; on every rank.
        """
        raise_everywhere(self._error)

    def _check(self, sequence: int, read: SequenceTokens) -> None:
        if len(read) != self._lengths[sequence]:
            message = (
                f"sequence {sequence} has {len(read)} tokens and the plan counts {self._lengths[sequence]}; "
                "give Planner.plan the lengths of the sequences that are read"
            )
            raise InvalidInputError(message, code="plan_mismatch")
        targets = count_targets(read)
        # Else the loss would be divided by another number than that of the targets that enter it.
        if targets != self._targets[sequence]:
            message = (
                f"sequence {sequence} has {targets} targets among its {len(read)} tokens and the plan counts "
                f"{self._targets[sequence]}; give Planner.plan the target counts of the sequences that are "
                "read"
            )
            raise InvalidInputError(message, code="plan_mismatch")
        tokens = plain_tokens(read)
        least, most = int(tokens.min()), int(tokens.max())
        if least < 0 or most >= self._vocab_size:
            wrong = least if least < 0 else most
            message = (
                f"sequence {sequence} has token {wrong}, and the limits are 0 and "
                f"{self._vocab_size - 1}: use the tokenizer of the model, or raise model.vocab_size, unless "
                "model.path gives it"
            )
            raise InvalidInputError(message, code="token_out_of_range")
