"""Options shared by several commands."""

import math
from pathlib import Path

import pytest

from hydraulis.cli.main import main
from hydraulis.cli.options import json_line

PLANNED = ["--profile", "llama-7b-a800", "--gpus", "8", "--lengths", "lengths.txt"]


@pytest.mark.parametrize(
    ("words", "ending"),
    [
        (["analyze", "text.jsonl", "--figure"], ".png or .svg or .pdf"),
        (["plan", *PLANNED, "--figure"], ".png or .svg or .pdf"),
        (["simulate", *PLANNED, "--tokens-per-batch", "9", "--figure"], ".png or .svg or .pdf"),
        (["report", "run", "--output"], ".html"),
        (["pack", "--lengths", "lengths.txt", "--window", "9", "--output"], ".npz or .index"),
        (["profile", "run.toml", "--output"], ".json"),
    ],
)
def test_an_output_file_has_the_ending_of_its_format(
    words: list[str],
    ending: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*words, "out.txt"]) == 2
    said = f"hydraulis: error [option_invalid]: {words[-1]}: 'out.txt' must end with {ending}: "
    assert capsys.readouterr().err.startswith(said)
    # Capitals are the same ending: the error is then about the missing input.
    assert main([*words, f"out{ending.split()[0].upper()}"]) == 2
    assert "must end with" not in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_line_of_json_has_null_for_what_json_lacks() -> None:
    values = {"a": math.nan, "b": [1.5, -math.inf, {"c": (math.inf, 2)}], "d": Path("x")}
    line = json_line(values, Path("y"), None)
    assert line == '{"a": null, "b": [1.5, null, {"c": [null, 2]}], "d": "x", "files": ["y"]}\n'
