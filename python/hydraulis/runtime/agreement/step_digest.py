"""Compares the plans and the tokens of all ranks in each step, before its update.

Every rank of a replica reads all of its sequences, so their digests must be equal. The digests travel in the
rank's report, which is gathered in any case. Ranks that are a replica of their own read other sequences;
their data are compared when the run starts (`data_facts`).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hydraulis._core import Plan
from hydraulis.data.tokens import MaskedTokens, SequenceTokens, plain_tokens
from hydraulis.errors import InvalidInputError
from hydraulis.runtime.agreement.comparison import describe_difference, digest_of


class StepDigest(NamedTuple):
    """Digests of one rank in one step.

    Attributes:
        plan: Digest of the plan.
        tokens: Digest of all sequences that the rank has read.
    """

    plan: int
    tokens: int


def tokens_digest(sequence: SequenceTokens) -> int:
    """Return a digest of a sequence's tokens and loss mask."""
    mask = sequence.loss_mask.tobytes() if isinstance(sequence, MaskedTokens) else b""
    return digest_of(np.ascontiguousarray(plain_tokens(sequence)).tobytes(), mask)


def digest_step(plan: Plan, sequences: Mapping[int, int]) -> StepDigest:
    """Compute the digests of a rank.

    Args:
        plan: Plan of the step.
        sequences: Digest of each sequence that the rank has read, by its id.
    """
    read = (number.to_bytes(8, "little") for pair in sorted(sequences.items()) for number in pair)
    return StepDigest(digest_of(plan.to_json().encode()), digest_of(*read))


def find_difference(plan: Plan, by_rank: Sequence[StepDigest]) -> InvalidInputError | None:
    """Return the error of the first difference between ranks (code `ranks_differ`); None without one."""
    comparable = {"the digest of the plan": {rank: digest.plan for rank, digest in enumerate(by_rank)}}
    for number, replica in enumerate(plan.replicas):
        name = f"the digest of the tokens of replica {number}"
        comparable[name] = {rank: by_rank[rank].tokens for rank in replica.ranks}
    for name, digests in comparable.items():
        if len(set(digests.values())) > 1:
            differs = describe_difference({rank: {name: digest} for rank, digest in digests.items()})
            message = (
                f"the ranks differ: {differs}; the step updated nothing: check the memory, the disk and the "
                "packages of the node that differs, and resume from the last checkpoint"
            )
            return InvalidInputError(message, code="ranks_differ")
    return None
