"""Weighted digests: they add up to 0 if and only if the ranks that share something agree on it."""

import pytest

from hydraulis import Plan
from hydraulis.runtime.agreement.step_digest import MODULUS, StepDigest, digest_step, weighted_digest
from runtime.tiny import plan_for

STRATEGY = "1x<tp2>+1x<pp2>+1x<1>"
WORLD = 6
PLAN = plan_for(WORLD, STRATEGY, [30, 29, 28, 27, 26, 25])
# The ranks of a replica read the same tokens; the last rank has no work.
TOKENS = {rank: 1 + 7**20 * (number + 1) for number, one in enumerate(PLAN.replicas) for rank in one.ranks}


def sums(digests: list[StepDigest]) -> list[int]:
    """Add up what the ranks contribute, as the all-reduce does."""
    replicas = {rank: replica for replica in PLAN.replicas for rank in replica.ranks}
    terms = [weighted_digest(digest, rank, WORLD, replicas.get(rank)) for rank, digest in enumerate(digests)]
    assert all(0 <= term < MODULUS for pair in terms for term in pair)
    return [sum(column) % MODULUS for column in zip(*terms, strict=True)]


def same() -> list[StepDigest]:
    plan = digest_step(PLAN, {}).plan
    return [StepDigest(plan, TOKENS.get(rank, 99)) for rank in range(WORLD)]


def test_equal_digests_add_up_to_zero() -> None:
    assert len(TOKENS) == WORLD - 1
    assert sums(same()) == [0, 0]
    assert Plan.from_json(PLAN.to_json()) == PLAN


@pytest.mark.parametrize("rank", range(WORLD))
def test_another_plan_on_any_rank_shows(rank: int) -> None:
    digests = same()
    digests[rank] = digests[rank]._replace(plan=digests[rank].plan ^ 1)
    assert sums(digests) != [0, 0]


@pytest.mark.parametrize("rank", [rank for one in PLAN.replicas if len(one.ranks) > 1 for rank in one.ranks])
@pytest.mark.parametrize("bit", [0, 31, 32, 62])
def test_other_tokens_in_a_replica_show(rank: int, bit: int) -> None:
    digests = same()
    digests[rank] = digests[rank]._replace(tokens=digests[rank].tokens ^ (1 << bit))
    assert sums(digests) != [0, 0]


def test_ranks_that_share_no_tokens_are_not_compared() -> None:
    digests = same()
    (alone,) = next(one.ranks for one in PLAN.replicas if len(one.ranks) == 1)
    digests[alone] = digests[alone]._replace(tokens=5)
    digests[WORLD - 1] = digests[WORLD - 1]._replace(tokens=6)
    assert sums(digests) == [0, 0]
