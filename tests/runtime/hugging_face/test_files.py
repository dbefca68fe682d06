"""What a run carries along of its model is there whole, and a refusal names the file that is wrong."""

import errno
from pathlib import Path

import pytest

from helpers import file_sizes_below, refused
from hydraulis.config.data import DataConfig, SourceConfig
from hydraulis.runtime.hugging_face.files import carry
from hydraulis.runtime.records.run_directory import CARRIED, RunDirectory

DATA = DataConfig(tokenizer="a-tokenizer", tokens_per_batch=1)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (path / name).write_text(f"{name}, the new one")
    return path


def test_a_file_copied_twice_is_the_new_one_or_the_whole_old_one(model: Path, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    carry(model, run, DATA)
    (model / "tokenizer.json").write_text("newer " * 100)
    with file_sizes_below(300), refused("file_unwritable", "tokenizer.json"):
        carry(model, run, DATA)
    assert (run.path / CARRIED / "tokenizer.json").read_text() == "tokenizer.json, the new one"
    assert len(list((run.path / CARRIED).iterdir())) == 2


def test_a_chat_template_that_does_not_fit_is_refused_as_a_file_of_the_run(
    model: Path, tmp_path: Path
) -> None:
    chat = DataConfig(
        sources=(SourceConfig(files=("chat.jsonl",), format="chat"),),
        tokenizer="a-tokenizer",
        chat_template="chatml",
        tokens_per_batch=1,
    )
    run = RunDirectory.create(tmp_path / "run")
    with file_sizes_below(50), refused("file_unwritable", "template.jinja"):
        carry(model, run, chat)


def test_a_file_of_the_model_that_cannot_be_read_is_named(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    # To root no permission is denied.
    monkeypatch.setattr(Path, "read_bytes", fail)
    with refused("file_unreadable", f"{model}/config.json"):
        carry(model, RunDirectory.create(tmp_path / "run"), DATA)
