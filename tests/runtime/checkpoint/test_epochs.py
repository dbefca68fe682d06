"""A checkpoint continues with another number of epochs that keeps its trained batches and moves."""

import dataclasses
from pathlib import Path

import pytest

from helpers import refused
from hydraulis.config.run import RunConfig
from hydraulis.data.dataset import Dataset
from hydraulis.data.open import make_datasets
from hydraulis.data.sampling.batch_group import BatchGroup
from hydraulis.data.sampling.run_length import run_length, with_steps
from hydraulis.runtime.checkpoint import resume
from hydraulis.runtime.checkpoint.position import DataPosition
from hydraulis.runtime.checkpoint.resume import ResumedRun
from runtime.checkpoint.test_manifest import MANIFEST
from runtime.tiny import made_up_corpus, run_config


@pytest.fixture(autouse=True)
def any_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest is of another model than the configuration."""
    monkeypatch.setattr(resume, "check_model", lambda *_: None)


@pytest.fixture(scope="module")
def data() -> Dataset:
    return make_datasets(run_config(1, ["1x<1>"]).data, [[made_up_corpus(256)]]).train


def config(data: Dataset, epochs: int) -> RunConfig:
    endless = run_config(1, ["1x<1>"])
    train = dataclasses.replace(endless.train, steps=None, epochs=epochs)
    limited = dataclasses.replace(endless, train=train)
    return with_steps(limited, run_length(limited, data))


def check(data: Dataset, step: int, before: int, now: int, group: BatchGroup | None = None) -> ResumedRun:
    """Compare a checkpoint of a run of `before` epochs with a run of `now` epochs."""
    cursor = DataPosition(config(data, before), data).cursor(step, group)
    manifest = dataclasses.replace(MANIFEST, step=step, data=cursor)
    resumed = ResumedRun(Path("run"), Path("run/step"), manifest)
    resumed.check(config(data, now), DataPosition(config(data, now), data))
    return resumed


def test_a_run_stopped_before_its_last_batch_continues_with_more_epochs(data: Dataset) -> None:
    last = config(data, 2).train.num_steps
    one, two = (DataPosition(config(data, epochs), data) for epochs in (2, 3))
    assert len(one.batch(last)) < len(two.batch(last))
    for step in (1, last - 1):
        assert check(data, step, 2, 3).nothing_left(last + 1) is None


def test_a_run_that_ended_with_a_smaller_batch_does_not_continue(data: Dataset) -> None:
    last = config(data, 2).train.num_steps
    check(data, last, 2, 2)
    with refused("checkpoint_mismatch", "train.epochs was 2 and is 3", "smaller last batch"):
        check(data, last, 2, 3)


def test_fewer_epochs_are_refused_where_they_end_before_a_moved_sequence_or_its_step(data: Dataset) -> None:
    last = config(data, 2).train.num_steps
    end = DataPosition(config(data, 2), data)
    short = len(end.batch(last))
    longer = len(DataPosition(config(data, 3), data).batch(last))
    assert 0 < short < longer
    steps = {"first_step": last - 2, "last_step": last + 1}
    # The batch of the last step has no such position, and there is no step after it.
    for move in ((last, short, last - 1), (last - 1, 0, last + 1)):
        group = BatchGroup(**steps, moves=(move,))
        check(data, last - 2, 3, 3, group)
        named = (f"steps {last - 2} to {last + 1}", "train.epochs was 3 and is 2", f"step {move[2]}")
        with refused("checkpoint_mismatch", *named, f"sequence {move[1]} of batch {move[0]}"):
            check(data, last - 2, 3, 2, group)
    check(data, last - 2, 3, 2, BatchGroup(**steps, moves=((last, short - 1, last - 1),)))


def test_fewer_epochs_may_end_the_run_where_it_is(data: Dataset) -> None:
    last = config(data, 2).train.num_steps
    assert check(data, last, 3, 2).nothing_left(last) is not None
