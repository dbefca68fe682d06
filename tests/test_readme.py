"""What the README says of figures and reports is what happens."""

import re
import shlex
from pathlib import Path

import pytest

from helpers import ROOT, at_least
from hydraulis.cli.main import main
from report.made_up_run import write_run

BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = ".venv/bin/hydraulis "


def commands() -> list[str]:
    """Return the commands that simulate, draw or report."""
    blocks = at_least(5, BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8")))
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    given = [line.removeprefix(COMMAND) for line in lines if line.startswith(COMMAND)]
    return at_least(3, [line for line in given if re.search(r"^simulate|^report|--figure", line)])


@pytest.mark.parametrize("command", commands(), ids=lambda command: command.split()[0])
def test_a_command_of_the_readme_does_what_it_says(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    if command.startswith("report"):
        (tmp_path / "runs").mkdir()
        write_run(tmp_path / "runs" / "demo", steps=2)
    # Three batches are drawn as fifty are.
    quick = ["--count", "3"] if command.startswith("simulate") else []
    assert main([*shlex.split(command), *quick]) == 0
    assert capsys.readouterr().out
    wanted = re.findall(r"--(?:figure|trace) (\S+)", command) or ["runs/demo/report.html"]
    for name in wanted:
        assert (tmp_path / name).stat().st_size > 10_000


def test_the_pictures_of_the_readme_are_there() -> None:
    pictures = at_least(
        1, re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    )
    assert [name for name in pictures if not (ROOT / name).is_file()] == []
