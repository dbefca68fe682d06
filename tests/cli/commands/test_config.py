"""`hydraulis config`: the effective configuration of a run."""

import json
import re
from pathlib import Path

import pytest

from helpers import ROOT
from hydraulis.cli.main import main
from hydraulis.config.run import load, to_dict

DEMO = str(ROOT / "examples/demo.toml")


def test_the_output_is_the_same_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--preset", "laptop", "--set", "train.steps=3", "--set", "planner.profile=p.json"]
    assert main(["config", DEMO, *options]) == 0
    printed = capsys.readouterr().out
    (tmp_path / "effective.toml").write_text(printed)
    wanted = load(DEMO, ["train.steps=3", "planner.profile=p.json"], "laptop")
    assert load(tmp_path / "effective.toml") == wanted
    for line, origin in (
        ("steps = 3", "--set"),
        ('profile = "p.json"', "--set"),
        ("every_steps = 100", "preset laptop"),
        ("memory_mib = 128", DEMO),
        ("keep = 2", "default"),
    ):
        assert re.search(rf"^{re.escape(line)} +# {re.escape(origin)}$", printed, re.MULTILINE), line


def test_as_json_values_and_origins_have_the_same_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", DEMO, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["config"] == json.loads(json.dumps(to_dict(load(DEMO))))
    assert document["origins"].keys() == document["config"].keys()
    for section, table in document["config"].items():
        assert document["origins"][section].keys() == table.keys()
    assert document["origins"]["train"]["steps"] == DEMO


def test_a_refused_configuration_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", DEMO, "--set", "train.stepz=3"]) == 2
    assert "'steps'" in capsys.readouterr().err


def test_a_refusal_with_json_is_a_document_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", DEMO, "--set", "train.stepz=3", "--json"]) == 2
    output = capsys.readouterr()
    error = json.loads(output.out)["error"]
    assert error["code"] == "config_unknown_key"
    assert output.err == f"hydraulis: error [config_unknown_key]: {error['message']}\n"
