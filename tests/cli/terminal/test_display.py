"""The display of a training run in a file and on a terminal."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from hydraulis.cli.tables.run_files import own_command
from hydraulis.cli.terminal.display import TrainingDisplay
from hydraulis.planner.static import StaticTotal
from hydraulis.runtime.memory.prediction import MemoryPrediction
from hydraulis.runtime.records.evaluation import Evaluation
from hydraulis.runtime.records.recorder import RunSummary
from hydraulis.train.observer import RunProgress
from runtime.records.test_metrics import made_up_metrics

LONG_FOLDER = Path("/home/somebody/[experiments]/" + "a-rather-long-folder-name/" * 6 + "run")
KEPT_PROFILE = "profile-00000077.json"
FILES = (
    KEPT_PROFILE,
    "report.html",
    "metrics.jsonl",
    "plans.jsonl",
    "trace.json",
    "profile.json",
    "config.json",
    "checkpoints",
)


@pytest.fixture(autouse=True)
def plain_output(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")


def made_up_summary(**changes: Any) -> RunSummary:
    fields: dict[str, Any] = {
        "first_step": 1,
        "steps": 48,
        "first_loss": 5.801,
        "last_loss": 2.702,
        "evaluations": [Evaluation(24, 3.5, "ab"), Evaluation(48, 2.9, "ab")],
        "tokens_per_s": 12_345.0,
        "mfu": 0.417,
        "wall_ms": 26_500.0,
        "plan_ms": 1.5,
        "bubble": 0.031,
        "imbalance": 1.25,
        "strategies": [("1x<tp2>+2x<1>", 30), ("4x<1>", 12), ("1x<tp4>", 6)],
        "planned_ms": 12_340.0,
        "measured_ms": 13_570.0,
        "median_error": 0.078,
        "transfer_share": 0.125,
        "memory_bytes": 1 << 30,
        "memory": MemoryPrediction(
            planned_bytes=900 << 20, peak_bytes=1 << 30, median_error=0.034, worst_error=-0.12
        ),
        "groups_ms": 40.0,
        "static": StaticTotal("1x<tp4>", 18_510.0),
        "static_steps": 48,
        "static_planned_ms": 12_340.0,
        "ranks_per_device": 1,
        "directory": LONG_FOLDER,
        "files": [LONG_FOLDER / name for name in FILES],
    }
    return RunSummary(**(fields | changes))


def show_run(rank: int) -> None:
    with TrainingDisplay(rank) as display:
        display.num_steps(2)
        display.message("corpus: [bold]10[/bold] documents, " + "many words " * 30)
        display.measuring(0.5)
        display.measuring(1.0)
        for step in (1, 2):
            display.step(made_up_metrics(step, loss=6.4321 - step))
    display.summary(made_up_summary(), "cpu")


def test_a_file_gets_one_plain_line_for_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    show_run(0)
    output = capsys.readouterr().out
    assert "\x1b" not in output
    assert "\r" not in output
    lines = output.splitlines()
    assert lines[0] == "corpus: [bold]10[/bold] documents, " + "many words " * 30
    assert lines[1] == (
        "step 1/2  loss 5.432  4,000 tokens/s  1x<tp2>+2x<1>  planned 100 ms  measured 110 ms  plan 1.5 ms  "
        "bubble 5 %  imbalance 1.25"
    )
    assert lines[2].startswith("step 2/2  loss 4.432  ")
    assert not any(line.startswith("step") for line in lines[3:])


def test_lines_are_written_as_they_happen(capsys: pytest.CaptureFixture[str]) -> None:
    with TrainingDisplay(0) as display:
        display.num_steps(2)
        display.step(made_up_metrics(1))
        assert capsys.readouterr().out.startswith("step 1/2")


@pytest.mark.parametrize("rank", [1, 7])
def test_other_ranks_are_silent(rank: int, capsys: pytest.CaptureFixture[str]) -> None:
    show_run(rank)
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("terminal")
def test_other_ranks_are_silent_on_a_terminal_too(capsys: pytest.CaptureFixture[str]) -> None:
    show_run(1)
    assert capsys.readouterr() == ("", "")


def summary_of(capsys: pytest.CaptureFixture[str], **changes: Any) -> str:
    display = TrainingDisplay(0)
    display.num_steps(48)
    display.summary(made_up_summary(**changes), "cpu")
    return capsys.readouterr().out


def test_the_summary_has_the_results_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    output = summary_of(capsys)
    rows = [line for line in output.splitlines() if "│" in line]
    assert "48 steps" in output
    assert output.count("chosen") == 1
    for wanted in (
        ("loss", "5.801", "2.702"),
        ("held-out loss", "3.500 after step 24", "2.900 nats after step 48"),
        ("speed", "12,345 tokens/s", "MFU 41.7 %"),
        ("planning", "1.5 ms"),
        ("ranks", "3.1 % of their replica", "1.25 times the mean"),
        ("chosen", "30 x", "1x<tp2>+2x<1> "),
        ("12 x", "4x<1> "),
        ("6 x", "1x<tp4> "),
        ("planned", "12.34 s"),
        ("measured", "13.57 s", "7.8 %"),
        # 18.51 s against 12.34 s.
        ("best static", "1x<tp4>", "18.51 s", "1.50 times"),
    ):
        assert any(all(part in row for part in wanted) for row in rows), wanted
    assert "CPU times of the slowest replica" in output


def test_unknown_results_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    output = summary_of(capsys, mfu=None, evaluations=[])
    assert "MFU" not in output
    assert "│ held-out loss" not in output


def test_a_single_evaluation_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    output = summary_of(capsys, evaluations=[Evaluation(48, 2.9, "ab")])
    assert output.count("2.900") == 1
    assert "2.900 nats after step 48" in output


def test_the_summary_reports_that_no_static_strategy_suffices(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no strategy of the list admits the longest sequence" in summary_of(capsys, static=None)


def test_the_summary_names_the_steps_of_the_static_comparison(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "sample" not in summary_of(capsys)
    sampled = summary_of(capsys, static_steps=16, static_planned_ms=9_255.0)
    assert (
        "18.51 s planned for a sample of 16 steps, 2.00 times as long as the run's plans of these" in sampled
    )
    assert "planner.recalibrate" in summary_of(capsys, static=None, static_steps=0)


def test_files_and_commands_that_read_them_come_last(capsys: pytest.CaptureFixture[str]) -> None:
    lines = summary_of(capsys).splitlines()
    folder, command = f"'{LONG_FOLDER}'", own_command()
    assert lines[-2:] == [
        f"to make a page with figures: {command} report {folder}",
        f"to export a Hugging Face model: {command} export {folder} --output FOLDER",
    ]
    listed = lines[lines.index(f"files of {folder}:") + 1 : -2]
    assert [line.split()[0] for line in listed] == list(FILES)
    assert f"  {KEPT_PROFILE}  cost profile until step 77" in listed
    assert not any(line.endswith("  file") for line in listed)
    without = summary_of(capsys, files=[LONG_FOLDER / "metrics.jsonl"])
    assert "hydraulis export" not in without


def test_the_command_is_named_as_the_shell_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "bin" / "hydraulis"
    script.parent.mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr(sys, "executable", str(script.with_name("python")))
    monkeypatch.setenv("PATH", "")
    assert own_command() == f"{script.with_name('python')} -m hydraulis"
    script.touch(mode=0o755)
    assert own_command() == str(script)
    monkeypatch.chdir(tmp_path)
    assert own_command() == "bin/hydraulis"
    monkeypatch.setenv("PATH", str(script.parent))
    assert own_command() == "hydraulis"


def test_the_summary_has_the_wall_clock_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert re.search(r"wall-clock time +.* 26\.50 s in total", summary_of(capsys))


@pytest.mark.usefixtures("terminal")
def test_notes_and_statistics_fit_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    notes, _, files = summary_of(capsys).partition("files of ")
    assert "Memory is that of tensors" in notes
    # Without colours.
    shown = re.sub(r"\x1b\[[0-9;]*m", "", notes)
    assert max(map(len, shown.splitlines())) == 80
    assert max(map(len, files.splitlines())) > 80


@pytest.mark.usefixtures("terminal")
def test_paths_are_whole_on_a_terminal_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert f"hydraulis report '{LONG_FOLDER}'\n" in summary_of(capsys)


def test_no_row_of_the_table_is_broken_in_a_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    name = "+".join(f"1x<tp{2**power}>" for power in range(1, 14))
    rows = [line for line in summary_of(capsys, strategies=[(name, 48)]).splitlines() if "│" in line]
    assert len(rows) == 13
    assert any(name in row for row in rows)


def test_the_summary_of_a_stopped_run_names_its_steps(capsys: pytest.CaptureFixture[str]) -> None:
    display = TrainingDisplay(0)
    display.num_steps(86)
    display.summary(made_up_summary(first_step=23), "cpu")
    title = capsys.readouterr().out
    assert "48 steps from step 23 on" in title
    assert "(stopped after step 70 of 86)" in title
    assert "stopped" not in summary_of(capsys)


def test_the_position_of_an_ended_run_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    ended = RunProgress(
        completed=30,
        num_steps=86,
        checkpoint=Path("run/checkpoints/step-00000025"),
        checkpoint_every=5,
        run=Path("run"),
    )
    with TrainingDisplay(0) as display:
        display.num_steps(86)
        display.step(made_up_metrics(30))
        display.stopped(ended)
        display.failed(ended)
    assert capsys.readouterr().out.splitlines()[1:] == [ended.after_stop(), ended.after_failure()]


@pytest.mark.usefixtures("terminal")
def test_a_terminal_gets_a_progress_line_instead(capsys: pytest.CaptureFixture[str]) -> None:
    show_run(0)
    output = capsys.readouterr().out
    assert "\x1b[" in output
    assert "step 1/2" not in output
    assert "loss 4.432" in output
    assert "1x<tp2>+2x<1>" in output


@pytest.mark.usefixtures("terminal")
def test_the_progress_line_marks_the_remaining_time(capsys: pytest.CaptureFixture[str]) -> None:
    # After one step there is no estimate yet.
    for steps, times in ((1, r"0:00:\d\d"), (2, r"0:00:\d\d, 0:\d\d:\d\d left")):
        with TrainingDisplay(0) as display:
            display.num_steps(86)
            for step in range(1, steps + 1):
                display.step(made_up_metrics(step))
        assert re.search(rf"training \S+  {steps}/86 {times} *\r?\n", shown(capsys))


def test_the_clock_starts_with_the_first_step() -> None:
    with TrainingDisplay(0) as display:
        (bar,) = display._bars.tasks
        display.num_steps(2)
        display.status("measuring")
        starts = []
        for step in (0, 1, 2):
            if step:
                display.step(made_up_metrics(step))
            starts.append(bar.start_time)
    assert starts[0] is None
    assert starts[1] is not None
    assert starts[1] == starts[2]


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the terminal's output without colours."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().out)


@pytest.mark.usefixtures("terminal")
def test_an_error_while_the_progress_line_is_shown_leaves_the_cursor_visible(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        with TrainingDisplay(0) as display:
            display.num_steps(2)
            display.step(made_up_metrics(1))
            message = "planted"
            raise RuntimeError(message)

    with pytest.raises(RuntimeError, match="planted"):
        fail()
    output = capsys.readouterr().out
    assert output.rfind("\x1b[?25h") > output.rfind("\x1b[?25l") >= 0


@pytest.mark.parametrize(
    ("device", "note"), [("cpu", "CPU times of the slowest"), ("cuda", "peak of torch's allocator")]
)
def test_the_summary_explains_memory_and_times(
    device: str, note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    TrainingDisplay(0).summary(made_up_summary(), device)
    output = capsys.readouterr().out
    assert "at most 1,024 MiB on a rank, 900 planned; median prediction error 3.4 %" in " ".join(
        output.replace("│", " ").split()
    )
    assert note in output
    TrainingDisplay(0).summary(made_up_summary(memory=None), device)
    assert "at most 1,024 MiB on a rank" in capsys.readouterr().out


def test_the_summary_marks_shared_devices(capsys: pytest.CaptureFixture[str]) -> None:
    TrainingDisplay(0).summary(made_up_summary(), "cuda")
    assert "shared" not in capsys.readouterr().out
    TrainingDisplay(0).summary(made_up_summary(ranks_per_device=8), "cuda")
    output = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "up to 8 ranks shared a device: this run is a test, and its times mean nothing" in output
