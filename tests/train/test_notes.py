"""Notes name slow ranks with their hosts, and settings that do not fit the model."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from data.sampling.test_run_length import config
from devices import one_rank
from helpers import lacks
from hydraulis.runtime.planning.node_links import LinkChange
from hydraulis.runtime.planning.rank_rates import RateChange
from hydraulis.train.notes import cpu_times_note, rate_messages, report_model
from hydraulis.train.slow_links import link_messages
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


@pytest.mark.parametrize(
    ("nodes", "slowdown", "said"),
    [
        ((1,), 3.2, "step 9: transfers to and from b take 3.2 times as long as usual; plans count with it"),
        ((0, 2), 3.0, "step 9: transfers to and from a and c take 3 times as long as usual;"),
        ((0, 1, 2), 2.0, "step 9: transfers between a, b and c, of which none stands out, take 2 times"),
        ((1,), 1.0, "step 9: transfers to and from b take their usual time again"),
    ],
)
def test_slow_links_are_named_by_their_hosts(nodes: tuple[int, ...], slowdown: float, said: str) -> None:
    (message,) = link_messages(9, [LinkChange(nodes, slowdown)], ["a", "a", "b", "b", "c", "c"], 2)
    assert message.startswith(said)


def test_two_nodes_have_one_link_and_many_are_not_all_named() -> None:
    (message,) = link_messages(9, [LinkChange((0, 1), 2.5)], ["a", "b"], 1)
    assert message.startswith("step 9: transfers between a and b take 2.5 times as long as usual;")
    (message,) = link_messages(9, [LinkChange(tuple(range(12)), 2.5)], list("abcdefghijkl"), 1)
    assert "transfers between a, b, c, d, e, f, g, h and 4 more, of which" in message


def test_cpu_ranks_that_share_cores_have_longer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert cpu_times_note(2) == ""
    assert cpu_times_note(4) == (
        "times are planned and measured as CPU time of the slowest replica; 4 ranks share 2 cores, so a "
        "step's wall-clock time is longer"
    )
