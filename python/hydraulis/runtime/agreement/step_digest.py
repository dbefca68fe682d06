"""Compares the plans and the tokens of all ranks in each step, before its update.

Every rank of a replica reads all of its sequences, so their digests must be equal. The step's all-reduce
carries weighted digests, whose sum over all ranks is 0 modulo `MODULUS` if they are; only ranks that differ
gather them. Ranks that are a replica of their own read other sequences; their data are compared when the run
starts (`data_facts`).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hydraulis._core import Plan, Replica
from hydraulis.data.tokens import MaskedTokens, SequenceTokens, plain_tokens
from hydraulis.errors import InvalidInputError
from hydraulis.runtime.agreement.comparison import describe_difference, digest_of
from hydraulis.runtime.ranks import host
from hydraulis.runtime.ranks.rank_zero import on_rank_zero

# Bits of a digest that are added up at a time: a float64 is exact up to 53 bits.
_BITS = 32
MODULUS = 1 << _BITS


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


def weighted_digest(digest: StepDigest, rank: int, world_size: int, replica: Replica | None) -> list[int]:
    """Weight a rank's digests so that equal digests add up to 0 modulo `MODULUS`.

    The first rank that has a digest gets minus the number of the others as its weight, each other one 1. If
    digests differ, the sums are 0 by chance once in 2**63.

    Args:
        digest: Digests of the rank.
        rank: Number of the rank.
        world_size: Number of ranks, which all have the same plan.
        replica: Replica of the rank, whose ranks have the same tokens; None for a rank without work.

    Returns:
        The low and the high part of the weighted sum, each below `MODULUS`.
    """
    sharers = [] if replica is None else replica.ranks
    plan_weight = 1 - world_size if rank == 0 else 1
    tokens_weight = 1 - len(sharers) if sharers and rank == sharers[0] else int(rank in sharers)
    return [
        (plan_weight * (digest.plan >> shift) + tokens_weight * (digest.tokens >> shift)) % MODULUS
        for shift in (0, _BITS)
    ]


def raise_difference(plan: Plan, digest: StepDigest) -> None:
    """Raise the first difference between ranks on every rank. Collective, if digests do not add up to 0.

    Args:
        plan: Plan of the step; rank 0's decides which ranks are compared.
        digest: Digests of this rank.

    Raises:
        InvalidInputError: Ranks differ in plan or tokens (code `ranks_differ`).
    """
    by_rank = host.gather_objects(digest)

    def find() -> None:
        assert by_rank is not None
        difference = find_difference(plan, by_rank)
        if difference is not None:
            raise difference

    on_rank_zero(find)


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
