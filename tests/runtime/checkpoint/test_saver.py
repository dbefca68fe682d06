"""Checkpoints are written beside training, one at a time, and read by any number of ranks."""

import errno
import os
from pathlib import Path

import pytest
import torch

from devices import one_rank
from helpers import lacks, refused, synced
from hydraulis.runtime.checkpoint import saver as saver_module
from hydraulis.runtime.ranks.streams import SideStream
from hydraulis.runtime.records.run_directory import RunDirectory
from ranks import run_ranks
from runtime.checkpoint.checkpoint_workers import (
    Loaded,
    State,
    Written,
    fail_to_record,
    first_copy,
    load,
    look_at,
    make_saver,
    make_shard,
    save,
    write_slowly,
)


def assert_same(one: State | None, other: State | None) -> None:
    assert one is not None
    assert other is not None
    assert one.keys() == other.keys() == {"master", "exp_avg", "exp_avg_sq"}
    for kind, values in one.items():
        assert values.keys() == other[kind].keys()
        for name, value in values.items():
            assert torch.equal(value, other[kind][name]), (kind, name)
            assert value.ne(0).any(), (kind, name)


@pytest.mark.parametrize(("writers", "ranks_per_node", "readers"), [(3, 3, (1, 3, 4)), (4, 2, (2,))])
def test_a_checkpoint_of_some_ranks_is_read_by_any_number_of_ranks(
    tmp_path: Path, writers: int, ranks_per_node: int, readers: tuple[int, ...]
) -> None:
    saved: Loaded = run_ranks(writers, save, tmp_path, ranks_per_node)[0]
    assert saved.stepped is not None
    for number in readers:
        loaded: Loaded = run_ranks(number, load, tmp_path)[0]
        assert_same(loaded.state, saved.state)
        assert loaded.stepped is not None
        # AdamW's correction depends on the number of steps made, the rate too.
        for kind, values in saved.stepped.items():
            for name, value in values.items():
                torch.testing.assert_close(loaded.stepped[kind][name], value, rtol=1e-14, atol=1e-16)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[Written]:
    result: list[Written] = run_ranks(2, write_slowly, tmp_path_factory.mktemp("checkpoints"))
    return result


def test_a_checkpoint_is_complete_once_every_rank_has_written(written: list[Written]) -> None:
    for rank in written:
        assert rank.while_writing == []
        assert rank.at_the_next_step == ["step-00000002"]


def test_one_checkpoint_is_written_at_a_time_and_the_oldest_are_removed(written: list[Written]) -> None:
    for rank in written:
        assert rank.after_another == ["step-00000002", "step-00000006"]
        assert rank.at_the_end == ["step-00000006", "step-00000008"]
        assert rank.values == [True, True]


def test_a_rank_that_cannot_write_ends_all_and_the_last_checkpoint_stays(written: list[Written]) -> None:
    assert written[0].failure == written[1].failure
    assert written[0].failure.startswith("file_unwritable: ")
    assert "state-00001-of-00002.safetensors" in written[0].failure
    for rank in written:
        assert rank.after_failure == rank.at_the_end


def test_a_checkpoint_has_the_state_of_its_step(tmp_path: Path) -> None:
    assert run_ranks(2, first_copy, tmp_path) == [True, True]


def test_a_record_that_fails_leaves_the_written_checkpoint_to_complete(tmp_path: Path) -> None:
    assert run_ranks(2, fail_to_record, tmp_path) == [("file_unwritable True", [], ["step-00000001"])] * 2


def test_a_folder_that_a_rank_does_not_see_is_refused_on_all(tmp_path: Path) -> None:
    folders = [tmp_path / "shared", tmp_path / "own"]
    for folder in folders:
        folder.mkdir()
    first, second = run_ranks(2, look_at, folders)
    assert first == second
    assert first[0] == ""
    assert first[1].startswith("folder_not_shared: rank 1 on ")
    assert str(folders[0]) in first[1]
    assert list(folders[0].iterdir()) == []


@pytest.mark.parametrize(("number", "remedy"), [(errno.EACCES, "permissions"), (errno.EDQUOT, "make room")])
def test_a_checkpoint_that_cannot_be_begun_is_named_with_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), str(path))

    with one_rank("cpu"):
        saver = make_saver(tmp_path / "checkpoints", make_shard())
        monkeypatch.setattr(Path, "mkdir", refuse)
        with refused("file_unwritable", os.strerror(number), remedy) as caught:
            saver.close(1)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'checkpoints' / 'step-00000001'} cannot be written: ")
    assert lacks(message, "Error(", "Errno") == ["Error(", "Errno"]


def test_all_checkpoints_of_a_run_are_copied_on_one_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[SideStream] = []

    def stream(device: torch.device) -> SideStream:
        made.append(SideStream(device))
        return made[-1]

    monkeypatch.setattr(saver_module, "SideStream", stream)
    with one_rank("cpu"):
        saver = make_saver(tmp_path, make_shard(), every_steps=1)
        for step in range(1, 4):
            saver.after(step)
        saver.close(3)
    # Torch has few, and a new one for each would soon be one that something else travels on.
    assert len(made) == 1


def test_the_disk_has_the_records_of_the_steps_before_their_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory.create(tmp_path / "run")
    run.append("metrics.jsonl", "{}")
    found = synced(monkeypatch, tmp_path)
    with one_rank("cpu"):
        make_saver(run.path / "checkpoints", make_shard()).close(1)
    names = [name for name, _ in found]
    assert names.index("metrics.jsonl") < names.index(".manifest.json.unfinished")


def test_the_disk_has_the_name_of_a_checkpoint_before_the_older_one_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory.create(tmp_path / "run")
    with one_rank("cpu"):
        saver = make_saver(run.path / "checkpoints", make_shard(), every_steps=1, keep=1)
        saver.close(1)
        found = synced(monkeypatch, run.path / "checkpoints" / "step-00000001")
        saver.close(2)
    assert not (run.path / "checkpoints" / "step-00000001").exists()
    names = [name for name, _ in found]
    assert ("checkpoints", True) in found[names.index(".manifest.json.unfinished") :]
