"""A file of observations survives the process that wrote it."""

import json
from pathlib import Path

import pytest

from hydraulis import InvalidInputError
from hydraulis.profile.observations import Observation, Timing
from hydraulis.profile.record import Conditions, ObservationFile, conditions_of, count_observations
from planner.test_profile_document import workload

CONDITIONS = conditions_of(workload(), ranks=2)
ONE = Observation("<pp2>", (64, 3), (Timing(1.0, 2.0), Timing(3.0, 4.5)))
OTHER = Observation("<1>", (64,), (Timing(5.0, 6.0),))


def written(path: Path) -> Path:
    file = ObservationFile(path, CONDITIONS)
    assert file.observations == []
    file.append([ONE])
    file.append([OTHER, OTHER])
    return path


def refusal(path: Path, conditions: Conditions = CONDITIONS) -> InvalidInputError:
    with pytest.raises(InvalidInputError) as caught:
        ObservationFile(path, conditions)
    return caught.value


def test_a_file_returns_its_observations(tmp_path: Path) -> None:
    path = written(tmp_path / "m.jsonl")
    assert ObservationFile(path, CONDITIONS).observations == [ONE, OTHER, OTHER]


def test_an_incomplete_last_line_is_removed(tmp_path: Path) -> None:
    path = written(tmp_path / "m.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"scheme": "<1>", "len')
    file = ObservationFile(path, CONDITIONS)
    assert file.observations == [ONE, OTHER, OTHER]
    file.append([ONE])
    assert ObservationFile(path, CONDITIONS).observations == [ONE, OTHER, OTHER, ONE]


@pytest.mark.parametrize("name", list(CONDITIONS))
def test_other_conditions_are_refused_by_name(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / "m.jsonl")
    value = 3 if name == "ranks" else "other"
    error = refusal(path, {**CONDITIONS, name: value})
    assert error.code == "measurements_invalid"
    assert f"{name} = {CONDITIONS[name]}" in str(error)
    assert str(value) in str(error)
    assert ObservationFile(path, CONDITIONS).observations == [ONE, OTHER, OTHER]


def test_counting_does_not_change_the_file(tmp_path: Path) -> None:
    path = written(tmp_path / "m.jsonl")
    content = path.read_bytes() + b'{"scheme": "<1>", "len'
    path.write_bytes(content)
    assert count_observations(path) == 3
    assert path.read_bytes() == content
    assert count_observations(tmp_path / "missing") == 0


def test_a_header_whose_write_was_interrupted_is_written_again(tmp_path: Path) -> None:
    header, *_ = written(tmp_path / "m.jsonl").read_bytes().splitlines()
    path = tmp_path / "n.jsonl"
    path.write_bytes(header[:20])
    assert written(path).read_bytes() == (tmp_path / "m.jsonl").read_bytes()


@pytest.mark.parametrize(
    "content",
    ["{}\n", "no JSON\n", '{"format": "other/1"}\n', "[1]\n", "no JSON\nand no last end", "no end at all"],
)
def test_another_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(content)
    assert refusal(path).code == "measurements_invalid"
    assert path.read_text() == content


@pytest.mark.parametrize(
    "line", ["{}", "nothing", json.dumps({"scheme": "<1>", "lengths": 3, "stages_ms": []})]
)
def test_a_line_that_is_no_observation_is_refused_by_its_number(tmp_path: Path, line: str) -> None:
    path = written(tmp_path / "m.jsonl")
    path.write_text(path.read_text() + line + "\n")
    error = refusal(path)
    assert error.code == "measurements_invalid"
    assert "line 5" in str(error)


def test_a_file_that_cannot_be_read_or_made_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path).code == "file_unreadable"
    assert refusal(tmp_path / "missing" / "m.jsonl").code == "file_unwritable"
