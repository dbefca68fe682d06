"""Notes name slow ranks with their hosts, and settings that do not fit the model."""

from dataclasses import replace
from pathlib import Path

from data.sampling.test_run_length import config
from devices import one_rank
from helpers import lacks
from hydraulis.runtime.planning.rank_rates import RateChange
from hydraulis.train.notes import rate_messages, report_model
from train.events import RecordedEvents

HOSTS = ["node-a"] * 8 + ["node-b"] * 12


def test_a_rank_is_named_with_its_host_and_its_time() -> None:
    (slow,) = rate_messages(12, [RateChange(3, 2.1)], HOSTS)
    assert lacks(slow, "step 12", "rank 3", "node-a", "2.1 times") == []
    (recovered,) = rate_messages(40, [RateChange(9, 1.0)], HOSTS)
    assert lacks(recovered, "step 40", "rank 9", "node-b") == []
    assert " times" not in recovered


def test_the_ranks_of_a_host_are_one_message() -> None:
    changes = [RateChange(rank, 1.5 + rank / 10) for rank in range(8, 20)] + [
        RateChange(1, 1.0),
        RateChange(2, 1.0),
    ]
    many, recovered = rate_messages(7, changes, HOSTS)
    assert lacks(many, "8, 9, 10, 11, 12, 13, 14, 15 and 4 more", "node-b", "3.4 times") == []
    assert lacks(recovered, "step 7", "ranks 1, 2", "node-a") == []
    assert list(rate_messages(7, [], HOSTS)) == []


def test_a_tokenizer_other_than_the_models_is_reported(
    tmp_path: Path,
) -> None:
    run = config(1, None)
    run = replace(run, checkpoint=replace(run.checkpoint, weights=str(tmp_path)))
    for has_tokenizer in (False, True):
        if has_tokenizer:
            (tmp_path / "tokenizer.json").write_text("{}")
        events = RecordedEvents()
        with one_rank("cpu"):
            report_model(run, events)
        said = [one for one in events.messages if str(tmp_path) in one]
        assert len(said) == has_tokenizer
        assert all("data.tokenizer = 'bytes'" in one for one in said)


def test_no_decay_patterns_without_a_parameter_are_reported() -> None:
    run = config(1, None)
    run = replace(run, optimizer=replace(run.optimizer, no_decay=("norm.weight",)))
    events = RecordedEvents()
    with one_rank("cpu"):
        report_model(run, events)
    assert [one for one in events.messages if "optimizer.no_decay" in one and "'norm.weight'" in one]
