"""The configuration in a run's folder: what a resumed run changes in it, and the one of earlier steps."""

import json
from pathlib import Path
from typing import Any

import pytest

from hydraulis.config.layered.table import from_table
from hydraulis.config.run import RunConfig
from hydraulis.runtime.records.run_config import changed_settings, write_config
from hydraulis.runtime.records.run_directory import RunDirectory


def config(rate: float = 1e-3, steps: int = 5, **output: Any) -> RunConfig:
    tables = {
        "model": {
            "vocab_size": 256,
            "hidden_size": 8,
            "intermediate_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "num_key_value_heads": 1,
        },
        "data": {"tokens_per_batch": 8},
        "optimizer": {"learning_rate": rate},
        "train": {"steps": steps},
        "planner": {"strategies": ["1x<1>"], "memory_mib": 1},
        "checkpoint": {"resume": output.pop("resume", "")},
        "output": {"directory": "run"} | output,
    }
    return from_table(RunConfig, tables, "")


def rate_in(path: Path) -> float:
    return float(json.loads(path.read_text())["optimizer"]["learning_rate"])


def test_each_changed_setting_is_described(tmp_path: Path) -> None:
    write_config(RunDirectory(tmp_path), config(), 0)
    path = tmp_path / "config.json"
    assert changed_settings(path, config(resume="latest", directory="other")) == []
    assert changed_settings(path, config(rate=0.25, steps=9)) == [
        "train.steps = 9, before 5",
        "optimizer.learning_rate = 0.25, before 0.001",
    ]


@pytest.mark.parametrize("text", [None, "", "[]", "{", '{"train": 3}', "\x00"])
def test_an_unreadable_configuration_is_not_compared(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    assert changed_settings(tmp_path / "config.json", config()) == []


def test_settings_of_other_versions_and_of_devices_are_not_compared(tmp_path: Path) -> None:
    write_config(RunDirectory(tmp_path), config(), 0)
    document = json.loads((tmp_path / "config.json").read_text())
    del document["optimizer"]["learning_rate"], document["samples"]
    document["train"]["gone"] = 3
    document["planner"]["memory_mib"] = 81_408
    (tmp_path / "config.json").write_text(json.dumps(document))
    assert changed_settings(tmp_path / "config.json", config(rate=0.25)) == []


def test_a_replaced_configuration_stays_under_its_last_step(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    write_config(run, config(0.5), 0)
    write_config(run, config(0.5, resume="latest"), 3)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    write_config(run, config(0.25), 7)
    assert {path.name: rate_in(path) for path in tmp_path.iterdir()} == {
        "config.json": 0.25,
        "config-00000007.json": 0.5,
    }


def test_steps_that_are_trained_again_leave_no_earlier_configuration(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    write_config(run, config(0.5), 0)
    write_config(run, config(0.25), 100)
    # Steps 51 to 100 are trained again, with the later settings, and then once more with those of the first.
    write_config(run, config(0.25, resume="latest"), 50)
    assert {path.name: rate_in(path) for path in tmp_path.iterdir()} == {
        "config.json": 0.25,
        "config-00000050.json": 0.5,
    }
    write_config(run, config(0.5, resume="latest"), 50)
    assert {path.name: rate_in(path) for path in tmp_path.iterdir()} == {"config.json": 0.5}


@pytest.mark.parametrize("name", ["config-mine.json", "config-5.json", "config-99999999.json.txt"])
def test_other_files_stay(name: str, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    write_config(run, config(0.5), 0)
    (tmp_path / name).write_text("mine")
    write_config(run, config(0.25), 7)
    assert (tmp_path / name).read_text() == "mine"
    assert rate_in(tmp_path / "config-00000007.json") == 0.5
