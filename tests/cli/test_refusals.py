"""Commands that compute with torch: refusals before it is loaded, and without it."""

import os
import subprocess
import sys

import pytest

from helpers import ROOT
from hydraulis.cli.commands import train as command
from hydraulis.cli.exit import EXIT_REFUSED
from hydraulis.cli.main import main

MISSPELT = ["examples/demo.toml", "--set", "train.stepz=9"]
PROFILE = ["--output", "profile.json"]
# A command, and what starts it.
WORDS = {
    "check": ["check", *MISSPELT, "--gpus", "4"],
    "profile": ["profile", *MISSPELT, "--ranks", "4", *PROFILE],
    "rank of profile": ["profile", *MISSPELT, *PROFILE],
    "train": MISSPELT,
}


@pytest.mark.parametrize("name", WORDS)
def test_a_configuration_is_refused_without_loading_torch(name: str) -> None:
    module = "cli.commands.train" if name == "train" else "cli.main"
    code = (
        f"import sys; from hydraulis.{module} import main; code = main(sys.argv[1:]); "
        "sys.exit('torch is loaded' if 'torch' in sys.modules else code)"
    )
    rank = {"RANK": "0", "LOCAL_RANK": "0"} if name in ("rank of profile", "train") else {}
    found = subprocess.run(
        [sys.executable, "-c", code, *WORDS[name]],
        env=os.environ | rank,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == EXIT_REFUSED, found.stderr
    assert "config_unknown_key" in found.stderr + found.stdout


@pytest.mark.parametrize("name", WORDS)
def test_missing_torch_is_reported(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    if name in ("rank of profile", "train"):
        for variable in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            monkeypatch.setenv(variable, "0")
        monkeypatch.setattr("hydraulis.cli.commands.profile.end_with_parent", lambda: None)
    words = [word for word in WORDS[name] if word not in ("--set", "train.stepz=9")]
    assert (command.main if name == "train" else main)(words) == EXIT_REFUSED
    assert "error [extra_missing]: " in (said := capsys.readouterr().err)
    assert "pip install 'hydraulis[train]'" in said


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["plan", "--gpus", "8", "--profile", "llama-7b-a800", "--strategies", "{odd}"], "option_invalid"),
        (["plan", "--gpus", "8", "--profile", "{odd}", "--lengths", "{odd}"], None),
        (["config", "examples/demo.toml", "--set", "planner.profile={odd}"], "config_value"),
        (["config", "examples/demo.toml", "--set", "output.directory={odd}"], "config_value"),
        (["check", "{odd}", "--gpus", "2", "--json"], None),
        (["report", "{odd}"], "run_unreadable"),
        (["export", "{odd}", "--output", "{odd}"], "checkpoint_missing"),
    ],
)
def test_bytes_that_are_no_utf8_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], code: str | None
) -> None:
    monkeypatch.chdir(ROOT)
    # As Python reads a command line with the byte 255.
    assert main([word.format(odd="a\udcff") for word in words]) == 2
    assert (f"error [{code}]: " in capsys.readouterr().err) or code is None
