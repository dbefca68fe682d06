"""A run goes on whatever a crash left of its records, and the lines of a step stay those of the step."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers import lacks, refused
from hydraulis import Plan
from hydraulis.runtime.records import resumed_records
from hydraulis.runtime.records.evaluation import Evaluation
from hydraulis.runtime.records.recorder import Recorder
from hydraulis.runtime.records.run_directory import RunDirectory
from hydraulis.runtime.records.samples import SampledText, Samples
from runtime.records.test_recorder import BATCHES, iteration, record

NULS = b"\0" * 300


def recorded(tmp_path: Path) -> Path:
    """Record four steps with a trace, evaluations and calibrations; return the run's folder."""
    directory = RunDirectory.create(tmp_path / "run")
    recorder = record(directory, 60, trace_step=2)
    for step in range(4):
        recorder.add(iteration(recorder, step))
        recorder.evaluated(Evaluation(step + 1, 5.0 - step, "ab"))
        recorder.recalibrated({"<1>": 1.0 + step / 8})
        recorder.sampled(Samples(step + 1, (SampledText("a", "b"),)))
    return directory.path


def resumed(path: Path, step: int) -> tuple[Recorder, list[str]]:
    recorder = record(RunDirectory(path), 60, trace_step=None)
    return recorder, recorder.go_on(step)


def steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (path / "metrics.jsonl").read_text().splitlines()]


def planned(path: Path) -> list[list[int] | None]:
    """Return the lengths of each line of the plans, None for a lost one."""
    lines = (path / "plans.jsonl").read_text().splitlines()
    return [None if line == "null" else Plan.from_json(line).lengths.tolist() for line in lines]


def cut(path: Path, lines: int) -> None:
    content = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(content[:lines]))


def test_steps_whose_metrics_were_lost_do_not_shift_the_others(tmp_path: Path) -> None:
    path = recorded(tmp_path)
    cut(path / "metrics.jsonl", 2)
    recorder, notes = resumed(path, 3)
    (note,) = notes
    assert lacks(note, "metrics.jsonl", "1 step", 3) == []
    recorder.add(iteration(recorder, 3))
    assert (steps(path), planned(path)) == ([1, 2, 4], [BATCHES[0], BATCHES[1], BATCHES[3]])
    # The comparison with static strategies plans the batch of the recorded step.
    summary = recorder.summary()
    assert summary.static is not None
    alone = record(RunDirectory(path), 60, trace_step=None)
    alone.static.add(Plan.from_json((path / "plans.jsonl").read_text().splitlines()[2]).lengths)  # type: ignore[union-attr]
    assert summary.static == alone.static.best()  # type: ignore[union-attr]
    # A second resume finds nothing wrong, and cuts by the step.
    assert resumed(path, 4)[1] == []
    assert (steps(path), planned(path)) == ([1, 2, 4], [BATCHES[0], BATCHES[1], BATCHES[3]])
    resumed(path, 2)
    assert (steps(path), planned(path)) == ([1, 2], [BATCHES[0], BATCHES[1]])


def test_lost_plans_and_times_leave_a_gap(tmp_path: Path) -> None:
    path = recorded(tmp_path)
    (path / "times.jsonl").unlink()
    (path / "plans.jsonl").write_bytes((path / "plans.jsonl").read_bytes()[:-9])
    recorder, notes = resumed(path, 4)
    lost = (("plans.jsonl", "1 step", 4), ("times.jsonl", "4 steps", 4))
    assert [lacks(note, *parts) for note, parts in zip(notes, lost, strict=True)] == [[], []]
    assert (steps(path), planned(path)) == ([1, 2, 3, 4], [*BATCHES[:3], None])
    assert (path / "times.jsonl").read_text() == "null\n" * 4
    recorder.add(iteration(recorder, 3))
    assert len((path / "times.jsonl").read_text().splitlines()) == len(planned(path)) == 5


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "torn": lambda content: content[: len(content) // 2],
    "nuls behind": lambda content: content + NULS,
    "nuls as a line": lambda content: content + NULS + b"\n",
    "binary": lambda content: b"\xff\xfe\n" + content,
    "no json": lambda content: b"{'step': 1}\n" + content,
    "a list": lambda content: b"[]\n" + content,
    "other keys": lambda content: b'{"a": 1}\n' + content,
    "another step": lambda content: b'{"step": "1", "strategy": "1x<tp2>", "loss": 1}\n' + content,
    "nested": lambda content: b"[" * 100_000 + b"]" * 100_000 + b"\n" + content,
    "huge": lambda content: b'{"step": ' + b"9" * 5_000 + b"}\n" + content,
}
FILES = (
    "metrics.jsonl",
    "plans.jsonl",
    "times.jsonl",
    "evaluations.jsonl",
    "calibrations.jsonl",
    "samples.jsonl",
    "trace.json",
)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_no_damage_of_a_record_stops_a_resume(tmp_path: Path, name: str, damage: str) -> None:
    path = recorded(tmp_path)
    whole = {file: (path / file).read_bytes() for file in FILES}
    (path / name).write_bytes(DAMAGE[damage](whole[name]))
    recorder, notes = resumed(path, 3)
    assert set(recorder.used()) <= {"1x<tp2>", "2x<1>"}
    assert set(recorder.factors(3)) <= {"<1>"}
    recorder.add(iteration(recorder, 3))
    if (path / "trace.json").exists():
        assert (path / "trace.json").read_bytes() == whole["trace.json"]
    # Nothing that cannot be read is left, and the files of all steps match.
    found = steps(path)
    assert found == sorted(set(found))
    assert found[-1] == 4
    if name != "plans.jsonl":
        assert planned(path) == [BATCHES[step - 1] for step in found]
    for other in ("plans.jsonl", "times.jsonl"):
        assert len((path / other).read_bytes().splitlines()) == len(found)
    assert resumed(path, 4)[1] == []
    # A file with a line for each step says how many it lost; damage behind them takes nothing away.
    is_behind = damage.startswith("nuls")
    if name == "metrics.jsonl":
        assert (notes == []) is is_behind
    assert all(name in note for note in notes)


def test_every_readable_evaluation_and_calibration_is_kept(tmp_path: Path) -> None:
    path = recorded(tmp_path)
    for name in ("evaluations.jsonl", "calibrations.jsonl"):
        first, *others = (path / name).read_bytes().splitlines(keepends=True)
        (path / name).write_bytes(b"".join([first, NULS, b"\n", *others]))
    recorder, notes = resumed(path, 3)
    names = (FILES[4], FILES[3])
    assert [lacks(note, "1 line", name) for note, name in zip(notes, names, strict=True)] == [[], []]
    lines = (path / "evaluations.jsonl").read_text().splitlines()
    assert [Evaluation.from_json(line).step for line in lines] == [1, 2, 3]
    assert recorder.factors(3) == {"<1>": 1.25}


def test_a_record_that_a_disk_does_not_give_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = recorded(tmp_path)

    def failing(file: Path, mode: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(file), mode)

    monkeypatch.setattr(resumed_records, "open_unlinked", failing)
    with refused("file_unreadable", path / "metrics.jsonl", "Input/output error"):
        resumed(path, 3)
    assert steps(path) == [1, 2, 3, 4]
