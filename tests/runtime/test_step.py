"""A step ends before its update if ranks differ, a rank's numbers are not finite, or a value jumps."""

import pytest

from hydraulis import Plan
from hydraulis.runtime.agreement.step_digest import StepDigest, digest_step, find_difference
from ranks import run_ranks
from runtime.step_workers import LENGTHS, STRATEGY, Refused, skip_and_stop, train_and_differ
from runtime.tiny import plan_for

PLAN_DIFFERS = "ranks_differ", "the digest of the plan is "
CASES = {
    "plan": PLAN_DIFFERS,
    "tokens": ("ranks_differ", "the digest of the tokens of replica 0 is "),
    "loss": ("loss_not_finite", "is nan, from 1 rank (2): "),
    "gradient": ("gradient_not_finite", "is nan, from 1 rank (2): "),
}


@pytest.fixture(scope="module")
def refusals() -> list[dict[str, Refused]]:
    result: list[dict[str, Refused]] = run_ranks(3, train_and_differ, list(CASES))
    return result


@pytest.mark.parametrize("case", CASES)
def test_the_rank_that_differs_is_named_and_no_rank_updates(
    refusals: list[dict[str, Refused]], case: str
) -> None:
    by_rank = [refused[case] for refused in refusals]
    code, says = CASES[case]
    assert len({refused.message for refused in by_rank}) == 1
    for refused in by_rank:
        assert refused.code == code
        # Set if other ranks might not raise it.
        assert refused.jump is None
        assert says in refused.message
        assert not refused.is_updated
    if case == "plan":
        assert " on rank 1, and " in by_rank[0].message
        assert " on ranks 0, 2" in by_rank[0].message
    if case == "tokens":
        assert "on rank 0, " in by_rank[0].message
        assert "on rank 1; " in by_rank[0].message


def test_a_jump_skips_or_stops() -> None:
    for skipped, stopped in run_ranks(2, skip_and_stop):
        assert skipped.jump is not None
        assert "the gradient norm jumped" in skipped.jump
        assert not skipped.is_updated
        assert skipped.steps == 9
        assert stopped.code == "training_jumped"
        assert not stopped.is_updated


def test_digests_are_of_plan_and_tokens() -> None:
    plan = plan_for(3, STRATEGY, LENGTHS)
    other = plan_for(3, STRATEGY, [*LENGTHS[1:], 3])
    first = digest_step(plan, {1: 5, 0: 4})
    assert first == digest_step(Plan.from_json(plan.to_json()), {0: 4, 1: 5})
    assert first.plan != digest_step(other, {1: 5, 0: 4}).plan
    assert first.tokens != digest_step(plan, {1: 4, 0: 5}).tokens
    same = [first, first, StepDigest(first.plan, 0)]
    assert find_difference(plan, same) is None
    assert find_difference(plan, [first._replace(tokens=1), first, first]) is not None
    assert find_difference(plan, [*same[:2], first._replace(plan=1)]) is not None
