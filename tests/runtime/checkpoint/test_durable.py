"""A file is there whole or not at all."""

from functools import partial
from pathlib import Path

import pytest
from safetensors import SafetensorError

from helpers import refused, synced
from hydraulis.runtime.checkpoint.durable import write_durably


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
