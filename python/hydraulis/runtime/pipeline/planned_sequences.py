"""Reads the sequences of this rank's micro-batches, and compares their lengths and targets with the plan's.

A rank that stopped at an unreadable sequence would leave the other ranks waiting in the middle of a step. So
zeros take the sequence's place, the step goes on, and afterwards every rank raises the same error.
"""

from collections.abc import Callable

import numpy as np

from hydraulis._core import Plan
from hydraulis.data.tokens import SequenceTokens, check_mask, count_targets, plain_tokens
from hydraulis.errors import HydraulisError, InvalidInputError
from hydraulis.runtime.agreement.step_digest import tokens_digest


class PlannedSequences:
    """The sequences of one plan.

    Attributes:
        digests: Digest of each sequence that was read, by its id.
        error: First error of reading (see `__call__`); None without one. Every rank raises it after the step.

    Args:
        plan: The plan, with the lengths and the number of targets of each sequence.
        read: Reader of a sequence's tokens, by its id in the batch.
        vocab_size: Vocabulary size of the model, above every token.
    """

    def __init__(self, plan: Plan, read: Callable[[int], SequenceTokens], vocab_size: int) -> None:
        self._lengths, self._targets = plan.lengths, plan.targets
        self._read = read
        self._vocab_size = vocab_size
        self.error: HydraulisError | None = None
        self.digests: dict[int, int] = {}

    def length(self, sequence: int) -> int:
        """Return the planned tokens of a sequence, which a call returns in any case."""
        return int(self._lengths[sequence])

    def __call__(self, sequence: int) -> SequenceTokens:
        """Read a sequence; return zeros if reading fails or the sequence does not match the plan.

        The error is the reader's, or an `InvalidInputError`: the sequence's number of tokens or of targets
        differs from the plan's (code `plan_mismatch`), its loss mask has another length
        (`micro_batch_invalid`), or a token is outside the vocabulary (`token_out_of_range`).
        """
        try:
            tokens = self._read(sequence)
            self._check(sequence, tokens)
        except HydraulisError as error:
            self.error = self.error or error
            tokens = np.zeros(self._lengths[sequence], dtype=np.int64)
        self.digests[sequence] = tokens_digest(tokens)
        return tokens

    def _check(self, sequence: int, read: SequenceTokens) -> None:
        if len(read) != self._lengths[sequence]:
            message = (
                f"sequence {sequence} has {len(read)} tokens and the plan counts {self._lengths[sequence]}; "
                "give Planner.plan the lengths of the same sequences"
            )
            raise InvalidInputError(message, code="plan_mismatch")
        check_mask(f"sequence {sequence}", read)
        targets = count_targets(read)
        # The plan's number of targets is the denominator of the loss.
        if targets != self._targets[sequence]:
            message = (
                f"sequence {sequence} has {targets} targets among its {len(read)} tokens and the plan "
                f"counts {self._targets[sequence]}; give Planner.plan the target counts of the same sequences"
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
