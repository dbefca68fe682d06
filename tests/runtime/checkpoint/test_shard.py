"""A shard has finite numbers, and its file is whole, with the permissions of any other new file."""

import os
import stat
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError, safe_open

from helpers import lacks, refused, synced, unopened
from hydraulis.runtime.checkpoint.shard import check_sound, write_durably, write_tensors
from ranks import run_ranks
from runtime.checkpoint.sound_workers import save_until_damaged


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_single_number_is_found_and_named(value: float, dtype: torch.dtype) -> None:
    sound = torch.full((1000,), torch.finfo(dtype).max, dtype=dtype)
    check_sound({"master/a": sound, "master/none": sound[:0]}, 7, 2)
    damaged = sound.clone()
    damaged[500] = value
    with refused("state_not_finite", "exp_avg/b", "rank 2"):
        check_sound({"master/a": sound, "exp_avg/b": damaged}, 7, 2)


def test_the_last_sound_checkpoint_is_kept(tmp_path: Path) -> None:
    """Only one checkpoint is kept, and the state of one rank is damaged after it."""
    for code, message, steps in run_ranks(2, save_until_damaged, tmp_path):
        assert code == "state_not_finite"
        assert "on rank 1 after step 2" in message
        assert steps == [1]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_the_umask_sets_the_permissions(tmp_path: Path, umask: int, mode: int) -> None:
    path = tmp_path / "state.safetensors"
    before = os.umask(umask)
    try:
        write_tensors(path, {"a": torch.arange(3)}, {"format": "pt"})
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert file.get_tensor("a").tolist() == [0, 1, 2]


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for text in ("first", "second"):
        write_durably(path, partial(Path.write_text, data=text))
        assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError("no space left"), SafetensorError("no space left")])
def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, error: Exception) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail_half_way(unfinished: Path) -> None:
        unfinished.write_text("ne")
        raise error

    with refused("file_unwritable", "no space left"):
        write_durably(path, fail_half_way)
    assert path.read_text() == "old"


def test_a_checkpoint_that_may_not_be_written_needs_no_room(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with unopened(tmp_path / ".file.unfinished"), refused("file_unwritable", path, "permissions") as caught:
        write_durably(path, partial(Path.write_text, data="new"))
    assert lacks(str(caught.value), "make room", "Errno") == ["make room", "Errno"]


def test_a_file_is_on_the_disk_before_and_after_its_renaming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = synced(monkeypatch, tmp_path / "file")
    write_durably(tmp_path / "file", partial(Path.write_text, data="new"))
    assert found == [(".file.unfinished", False), (tmp_path.name, True)]


def test_another_error_is_raised_unchanged(tmp_path: Path) -> None:
    def fail(_unfinished: Path) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_durably(tmp_path / "file", fail)
