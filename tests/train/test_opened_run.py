"""A run before it is built: its messages, and its end while it waits for the lock."""

from pathlib import Path

import pytest

from data.sampling.test_run_length import Ten, config
from hydraulis import Cluster
from hydraulis.runtime.ranks.stop import StopRequest
from hydraulis.train import opened_run
from hydraulis.train.opened_run import OpenedRun, _with_steps
from runtime.tiny import run_config
from train.events import RecordedEvents


def test_batches_that_repeat_the_same_data_are_reported() -> None:
    events = RecordedEvents()
    for tokens in (600, 60_000):
        _with_steps(config(3, None, tokens_per_batch=tokens), Ten(), events)
    (message,) = events.messages
    assert message.startswith("data.tokens_per_batch = 60,000: ")
    assert "10 sequences of 300 tokens" in message
    assert events.steps == [3, 3]


def test_a_run_that_is_stopped_while_it_waits_for_its_lock_opens_no_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Resumed:
        run = tmp_path

    waited: list[Path] = []

    def wait(run: Path, *_: object) -> bool:
        waited.append(run)
        return False

    monkeypatch.setattr(opened_run, "run_cluster", lambda: Cluster(1, 1))
    monkeypatch.setattr(opened_run, "find_run", lambda *_: Resumed())
    monkeypatch.setattr(opened_run, "wait_for_lock", wait)
    assert OpenedRun.open(run_config(1, ["1x<1>"]), StopRequest(), RecordedEvents()) is None
    assert waited == [tmp_path]
