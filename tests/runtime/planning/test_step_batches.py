"""Lookahead in training: each sequence is trained once, as one process would train the regrouped batches."""

from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from hydraulis import Plan
from hydraulis.data.sampling.batch_group import BatchGroup
from hydraulis.data.sampling.sampler import BatchSampler
from hydraulis.runtime.planning.step_batches import StepPosition
from ranks import run_ranks
from runtime.one_process import one_process, relative_error
from runtime.planning.step_batches_workers import ORDER_SEED, Trained, lookahead_config, refused, train
from runtime.tiny import made_up_corpus

# A group of four steps and one of two, the last of the run.
STEPS, LOOKAHEAD = 6, 4
CORPUS = made_up_corpus(256)


def own(step: int) -> npt.NDArray[np.int64]:
    return BatchSampler(CORPUS.lengths, 120, ORDER_SEED).batch(step - 1).sequences


@pytest.fixture(scope="module")
def runs() -> list[list[Trained]]:
    result: list[list[Trained]] = run_ranks(2, train, STEPS, LOOKAHEAD, StepPosition())
    return result


def sequences(trained: Trained, step: int) -> list[int]:
    found: list[int] = trained.group.sequences(step, own).tolist()
    return found


def test_all_ranks_have_the_same_groups_and_plans(runs: list[list[Trained]]) -> None:
    first, second = runs
    assert [one.plan for one in first] == [one.plan for one in second]
    assert [one.group for one in first] == [one.group for one in second]
    assert [(one.group.first_step, one.group.last_step) for one in first] == [(1, 4)] * 4 + [(5, 6)] * 2


def test_each_sequence_of_a_group_is_trained_once(runs: list[list[Trained]]) -> None:
    assert sum(one.moved for one in runs[0]) > 0
    for steps in (range(1, 5), range(5, 7)):
        trained = [sequences(runs[0][step - 1], step) for step in steps]
        assert sorted(chain(*trained)) == sorted(chain(*(own(step).tolist() for step in steps)))
    for step, one in enumerate(runs[0], start=1):
        lengths = CORPUS.lengths[sequences(one, step)]
        assert Plan.from_json(one.plan).lengths.tolist() == lengths.tolist()
        assert one.moved == one.group.num_moved(step)


def test_losses_gradients_and_parameters_equal_one_process_on_the_regrouped_batches(
    runs: list[list[Trained]],
) -> None:
    def tokens(index: int) -> Any:
        return CORPUS.read(index)

    steps = [
        (Plan.from_json(one.plan).strategy, [tokens(index) for index in sequences(one, step)])
        for step, one in enumerate(runs[0], start=1)
    ]
    model = lookahead_config(STEPS, LOOKAHEAD).model
    for one, expected in zip(runs[0], one_process(model, torch.float64, steps), strict=True):
        assert one.loss == pytest.approx(expected.loss, rel=1e-10)
        norms = torch.stack([gradient.norm() for gradient in expected.gradients.values()])
        assert one.gradient_norm == pytest.approx(float(norms.norm()), rel=1e-10)
        assert one.parameters is not None
        for name, parameter in expected.parameters.items():
            assert relative_error(one.parameters[name], parameter) <= 1e-10, name


def test_a_run_within_a_group_trains_what_the_group_left(runs: list[list[Trained]]) -> None:
    group = runs[0][1].group
    # Another lookahead than that of the group, as a changed configuration has it.
    rest = run_ranks(2, train, STEPS, 2, StepPosition(2, group))[0]
    assert [one.group for one in rest[:2]] == [group, group]
    assert [one.plan for one in rest[:2]] == [one.plan for one in runs[0][2:4]]
    assert (rest[2].group.first_step, rest[2].group.last_step) == (5, 6)


def test_without_lookahead_a_step_is_a_group(runs: list[list[Trained]]) -> None:
    plain: list[Trained] = run_ranks(2, train, 2, 1, StepPosition())[0]
    assert [one.group for one in plain] == [BatchGroup(first_step=step, last_step=step) for step in (1, 2)]
    assert [one.plan for one in plain] != [one.plan for one in runs[0][:2]]


def test_a_broken_plan_of_a_group_ends_every_rank() -> None:
    for code, message in run_ranks(2, refused):
        assert code == "plan_broken"
        assert "sequence 3 of batch 1 is in no step" in message
