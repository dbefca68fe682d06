"""`hydraulis check`: a line for each finding, the JSON document, and the exit code."""

import json
from pathlib import Path

import pytest

from cli.reports import collect_reports
from hydraulis.cli.main import main
from preflight.checked_run import write_checked_run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checked")
    write_checked_run(path)
    return path


NAMES = [
    *("configuration", "model", "tokenizer", "data", "length", "resume", "device", "kernels", "profile"),
    *("strategies", "memory", "longest", "time", "output", "copies", "services"),
]


def test_the_command_prints_a_line_for_each_check(
    made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = collect_reports(monkeypatch)
    command = ["check", str(made / "run.toml"), "--gpus", "4"]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == NAMES
    assert [one.name for one in reports[1:]] == [f"checking {name}" for name in NAMES[1:]]
    assert main([*command, "--set", "planner.strategies=8x<1>", "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in document["findings"]] == NAMES
    assert not document["ready"]
    assert [one["code"] for one in document["findings"] if one["code"]] == ["strategy_unplaceable"]


def test_a_warning_is_a_line_and_refuses_nothing(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["check", str(made / "run.toml"), "--gpus", "4", "--set", "planner.strategies=1x<tp2>"]
    assert main(command) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]
    line, memory = lines
    assert memory.startswith("warning  memory ")
    assert "planner.memory_mib = 6" in memory
    assert line.startswith("warning  strategies     1 strategy over <tp2> on 4 ranks")
    assert main([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ready"]
    assert [one["name"] for one in document["findings"] if one["status"] == "warning"] == [
        "strategies",
        "memory",
    ]


def test_unused_memory_of_a_preset_is_no_warning(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (made / "run.toml").read_text().replace("memory_mib = 6\n", "")
    (tmp_path / "run.toml").write_text(text)
    command = ["check", str(tmp_path / "run.toml"), "--gpus", "4", "--preset", "laptop"]
    for override, status in ((), "ok"), (("--set", "planner.memory_mib=6"), "warning"):
        assert main([*command, *override]) == 0
        (line,) = [line for line in capsys.readouterr().out.splitlines() if line.split()[1] == "memory"]
        assert line.startswith(f"{status} ")
        assert "planner.memory_mib = " in line


def test_a_configuration_that_is_refused_is_one_line(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(made / "run.toml"), "--gpus", "4", "--set", "train.stepz=4"]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("refused  configuration  [config_unknown_key] key 'stepz'")
