"""A group of batches: each sequence is trained once, in the order of the batches as they came."""

import numpy as np
import pytest

from hydraulis.data.sampling.batch_group import BatchGroup

# Sequences of the batches of steps 5 to 7.
OWN = {5: [10, 11, 12], 6: [20, 21], 7: [30, 31, 32, 33]}
# Step 5 gives its second sequence to step 7, which gives its first and last to step 6.
MEMBERS = [[(0, 0), (0, 2)], [(1, 0), (1, 1), (2, 0), (2, 3)], [(0, 1), (2, 1), (2, 2)]]


def group() -> BatchGroup:
    return BatchGroup.of_members(5, [np.array(members, dtype=np.int64) for members in MEMBERS])


def own(step: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(OWN[step], dtype=np.int64)


def test_a_group_has_the_members_of_its_lookahead() -> None:
    sequences = {step: group().sequences(step, own).tolist() for step in OWN}
    assert sequences == {5: [10, 12], 6: [20, 21, 30, 33], 7: [11, 31, 32]}
    assert group().moves == ((7, 0, 6), (7, 3, 6), (5, 1, 7))
    assert [group().num_moved(step) for step in OWN] == [0, 2, 1]


def test_a_group_covers_its_steps_alone() -> None:
    assert [step in group() for step in range(4, 9)] == [False, True, True, True, False]


def test_a_group_survives_its_json() -> None:
    assert BatchGroup.from_json(group().to_json()) == group()


@pytest.mark.parametrize("step", OWN)
def test_without_moves_a_step_trains_its_own_batch(step: int) -> None:
    plain = BatchGroup(first_step=5, last_step=7)
    assert plain.sequences(step, own).tolist() == OWN[step]
