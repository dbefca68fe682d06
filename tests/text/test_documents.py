"""Messages about a relative path give the absolute path that was tried, in every command."""

from pathlib import Path

import pytest

from hydraulis.cli.main import main
from hydraulis.text.documents import describe_read_error

PLAN = ["plan", "--gpus", "8"]


def test_only_a_relative_path_is_made_absolute(tmp_path: Path) -> None:
    gone = FileNotFoundError(2, "No such file or directory")
    assert describe_read_error(tmp_path / "x", gone) == "No such file or directory"
    assert describe_read_error(Path("x"), gone) == f"No such file or directory: {Path.cwd() / 'x'}"
    assert describe_read_error(tmp_path, OSError("odd")) == "odd"


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (["config", "run.toml"], "run.toml"),
        ([*PLAN, "--profile", "p.json", "--lengths", "x"], "p.json"),
        ([*PLAN, "--profile", "llama-7b-a800", "--lengths", "x.txt"], "x.txt"),
        (["analyze", "x.jsonl"], ""),
        (["analyze", "chat.jsonl", "--tokenizer", "base"], "base"),
        (["analyze", "chat.jsonl", "--format", "chat", "--chat-template", "t.jinja"], "t.jinja"),
    ],
)
def test_a_relative_path_starts_at_the_working_directory(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    file: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chat.jsonl").write_text('{"messages": []}\n')
    assert main(words) == 2
    assert str(tmp_path / file) in capsys.readouterr().err
