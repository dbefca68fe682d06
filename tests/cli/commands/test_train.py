"""`hydraulis train`, end to end on its own ranks and on those of torchrun."""

import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import pytest

from cli.invocation import assert_refused
from hydraulis import Plan
from hydraulis.cli.commands import train as command
from hydraulis.cli.exit import EXIT_INTERRUPTED, EXIT_LOST_RANK, EXIT_REFUSED
from hydraulis.cli.main import main, make_parser
from hydraulis.cli.options import with_resume
from hydraulis.config.run import load
from hydraulis.report.run import read_run
from hydraulis.runtime.checkpoint.folder import CheckpointFolder
from hydraulis.runtime.checkpoint.reader import CheckpointReader, read_manifest
from train.small_run import STEPS, read_lines, write_config, write_quick_config

ENDLESS = 100_000
Launcher = Literal["torchrun", "hydraulis"]
# Keeps the process id and the exit code of each rank.
KEEP_CODES = """
import os, signal
# Under nohup the tests' process ignores hang-ups, and its children too.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
leave, set_group, ranks = os._exit, os.setpgid, []
def begin():
    if "RANK" in os.environ:
        ranks.append(os.getpid())
        with open("{place}/process-" + os.environ["RANK"], "w") as file:
            file.write(str(os.getpid()))
def set_group_and_begin(*numbers):
    # A rank that was forked from a server begins with this call.
    set_group(*numbers)
    begin()
def keep(code):
    # Processes that a rank forks are skipped.
    if os.getpid() in ranks:
        with open("{place}/code-" + os.environ["RANK"], "w") as file:
            file.write(str(code))
    leave(code)
os._exit, os.setpgid = keep, set_group_and_begin
begin()
"""
FILES = {
    "analysis.json",
    "checkpoints",
    "config.json",
    "corpus.json",
    "lock",
    "metrics.jsonl",
    "plans.jsonl",
    "profile.json",
    "times.jsonl",
    "trace.json",
}


def start(
    arguments: Sequence[str],
    output: int = subprocess.PIPE,
    launcher: Launcher = "torchrun",
    *,
    restarts: int = 0,
    errors: int | None = None,
    **environment: str,
) -> "subprocess.Popen[str]":
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    # Two CPU ranks, also on a machine with one device.
    settings = {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": loopback,
        "CUDA_VISIBLE_DEVICES": "",
    } | environment
    # Without it torchrun leaves a folder in /tmp; the first argument is a file in the test's folder.
    logs = ("--log-dir", str(Path(arguments[0]).parent / "torchrun"))
    torchrun = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", *logs)
    restarted = ("--max-restarts", str(restarts))
    launched: dict[Launcher, Sequence[str]] = {
        "torchrun": (*torchrun, *restarted, "-m", "hydraulis.train"),
        # Two ranks, as the strategies need.
        "hydraulis": ("hydraulis", "train"),
    }
    return subprocess.Popen(
        [sys.executable, "-m", *launched[launcher], *arguments],
        env=os.environ | settings,
        stdout=output,
        stderr=output if errors is None else errors,
        text=True,
    )


def finish(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=120)
    finally:
        # The launcher passes the signal on to its ranks.
        process.terminate()
        process.wait(60)
    return process.returncode, out, err


def assert_no_traceback_of_ours(err: str) -> None:
    # torchrun's report of a failed rank has a traceback of torch's files.
    assert "hydraulis/" not in err
    assert "[rank" not in err


class Run(NamedTuple):
    """A run that has ended."""

    code: int
    out: str
    err: str
    directory: Path

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return read_lines(self.directory / "metrics.jsonl")


def stopped(process: "subprocess.Popen[str]", directory: Path, steps: int, number: signal.Signals) -> Run:
    """Send the launcher a signal after a number of recorded steps, and wait for the end."""
    metrics = directory / "metrics.jsonl"
    try:
        wait_for(process, lambda: metrics.exists() and metrics.read_text().count("\n") >= steps)
        process.send_signal(number)
    finally:
        code, out, err = finish(process)
    return Run(code, out, err, directory)


def wait_for(process: "subprocess.Popen[str]", is_there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not is_there():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("end-to-end")


@pytest.fixture(scope="module")
def first(folder: Path) -> Run:
    return Run(*finish(start([str(write_config(folder))], launcher="hydraulis")), folder / "run")


@pytest.fixture(scope="module")
def second(folder: Path, first: Run) -> Run:
    """Run the same configuration with the first run's profile, for longer, and interrupt it."""
    overrides = (f'planner.profile="{first.directory}/profile.json"', f"train.steps={ENDLESS}")
    options = [part for override in overrides for part in ("--set", override)]
    process = start([str(folder / "run.toml"), *options], launcher="hydraulis")
    return stopped(process, folder / "run-2", STEPS, signal.SIGINT)


@pytest.fixture(scope="module")
def third(folder: Path, first: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Resume the first run in a copy of its folder, terminate it, and keep its ranks' exit codes."""
    place = tmp_path_factory.mktemp("third")
    directory = shutil.copytree(first.directory, place / "run")
    (place / "sitecustomize.py").write_text(KEEP_CODES.format(place=place))
    options = ["--resume", str(directory), "--set", f"train.steps={ENDLESS}", "--json"]
    path = os.pathsep.join((str(place), os.environ.get("PYTHONPATH", "")))
    process = start([str(folder / "run.toml"), *options], PYTHONPATH=path)
    return stopped(process, directory, STEPS + 2, signal.SIGTERM)


def test_a_run_ends_with_its_files(first: Run) -> None:
    assert (first.code, first.err) == (0, "")
    assert first.out.startswith("starting 2 ranks: ")
    assert {path.name for path in first.directory.iterdir()} == FILES


def test_each_step_is_recorded_and_the_loss_falls(first: Run) -> None:
    metrics = first.metrics
    assert [line["step"] for line in metrics] == list(range(1, STEPS + 1))
    for line in metrics:
        assert line["strategy"] in ("2x<1>", "1x<tp2>", "1x<cp2>")
        assert 1024 <= line["tokens"] < 1024 + 400
        assert 1 <= line["longest"] <= 400
        for name in ("planned_ms", "measured_ms", "wall_ms", "plan_ms"):
            assert 0 < line[name] < 60_000, name
        assert line["measured_ms"] < line["wall_ms"]
    losses = [line["loss"] for line in metrics]
    assert losses[0] == pytest.approx(math.log(256), abs=0.6)
    assert losses[-1] < losses[0] - 0.3


def test_plans_and_trace_are_those_of_the_steps(first: Run) -> None:
    lines = (first.directory / "plans.jsonl").read_text().splitlines()
    plans = [Plan.from_json(line) for line in lines]
    assert [plan.strategy for plan in plans] == [line["strategy"] for line in first.metrics]
    trace = json.loads((first.directory / "trace.json").read_text())
    names = {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"}
    assert names == {f"planned: {plans[1].strategy}", f"measured: {plans[1].strategy}"}
    working = {rank for replica in plans[1].replicas if replica.micro_batches for rank in replica.ranks}
    for process in (0, 1):
        spans = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["pid"] == process]
        assert {span["tid"] for span in spans} == working
    ends = [e["ts"] + e["dur"] for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == 1]
    assert max(ends) == pytest.approx(1e3 * first.metrics[1]["measured_ms"], rel=1e-6)


def test_the_trained_parameters_are_in_a_checkpoint_of_the_end(first: Run) -> None:
    (checkpoint,) = CheckpointFolder.of_run(first.directory).complete()
    manifest = read_manifest(checkpoint)
    assert manifest.step == STEPS
    assert len(manifest.parameters) == 2 * 9 + 3
    with CheckpointReader(checkpoint, manifest) as reader:
        for parameter in manifest.parameters:
            values = reader.read(parameter.name, 0, parameter.intervals[-1][2])
            assert values.isfinite().all()
        # Trained: norms start as ones.
        assert reader.read("norm.weight", 0, 32).ne(1).any()


def test_the_log_shows_each_step_once_and_where_the_files_are(first: Run) -> None:
    lines = first.out.splitlines()
    for step in range(STEPS):
        assert sum(line.startswith(f"step {step + 1}/{STEPS}  loss ") for line in lines) == 1
    corpus = json.loads((first.directory / "corpus.json").read_text())
    assert sum(corpus["fingerprint"][:12] in line for line in lines) == 1
    for name in FILES:
        assert any(line.startswith(f"  {name} ") for line in lines), name
    assert "best static strategy" in first.out
    assert "stopped" not in first.out
    places = [place for place, line in enumerate(lines) if line.startswith("step 1/")]
    assert lines.index(f"writing into {first.directory}") < places[0]
    (measuring,) = (place for place, line in enumerate(lines) if line.startswith("measuring 3 schemes"))
    assert "up to 24 micro-batches" in lines[measuring]
    assert " for 1 s or " in lines[measuring]


def test_the_same_seed_and_profile_give_the_same_run_to_the_bit(first: Run, second: Run) -> None:
    assert [line["loss"] for line in second.metrics[:STEPS]] == [line["loss"] for line in first.metrics]
    plans = [(run.directory / "plans.jsonl").read_text().splitlines()[:STEPS] for run in (first, second)]
    assert plans[0] == plans[1]
    for name in ("profile.json", "corpus.json"):
        assert (second.directory / name).read_bytes() == (first.directory / name).read_bytes(), name


def test_a_second_run_leaves_the_first_alone(folder: Path, first: Run, second: Run) -> None:
    assert first.directory != second.directory
    assert len(first.metrics) == STEPS
    assert {path.name for path in folder.iterdir()} == {"run.toml", "run", "run-2"}
    wanted = f"writing into {second.directory}: output.directory = '{first.directory}' exists already"
    assert wanted in second.out.splitlines()


def test_a_refusal_is_reported_once_even_if_rank_zero_is_the_slowest(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, time\nif os.environ.get('RANK') == '0':\n    time.sleep(2)\n"
    )
    config = str(write_config(tmp_path))
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    code, out, err = finish(start([config, "--set", "train.stepss=9"], PYTHONPATH=path))
    assert code != 0
    assert (out + err).count("hydraulis.train: error [config_unknown_key]: ") == 1
    assert "'steps'" in err
    *_, root_cause = err.partition("Root Cause")
    assert "traceback : refused [config_unknown_key]: key 'stepss' in section [train] is" in root_cause
    assert_no_traceback_of_ours(err)
    assert not (tmp_path / "run").exists()


def test_a_report_can_read_the_folder(second: Run) -> None:
    run = read_run(second.directory)
    assert [one.step for one in run.metrics] == [line["step"] for line in second.metrics]
    assert run.traced is not None
    measured = max(span.end_ms for spans in run.traced.timelines["measured"] for span in spans)
    assert measured == pytest.approx(run.metrics[run.traced.step - 1].measured_ms)


def test_an_interrupt_ends_the_run_between_two_steps_with_whole_files(second: Run) -> None:
    assert second.code == EXIT_INTERRUPTED
    assert second.err == "\nhydraulis: stopping; finished work is saved first; Ctrl-C again stops at once\n"
    assert {path.name for path in second.directory.iterdir()} == FILES
    steps = [line["step"] for line in second.metrics]
    assert steps == list(range(1, len(steps) + 1))
    assert STEPS <= len(steps) < ENDLESS
    assert len(read_lines(second.directory / "plans.jsonl")) == len(steps)
    (checkpoint,) = CheckpointFolder.of_run(second.directory).complete()
    assert read_manifest(checkpoint).step == len(steps)
    assert f"{len(steps)} steps, each with its own plan" in second.out
    assert second.out.splitlines()[-1] == (
        f"stopped after step {len(steps)} of {ENDLESS}; checkpoint: {checkpoint}; to resume: "
        f"the same command with --resume {second.directory}"
    )


def test_termination_leaves_a_checkpoint_and_the_exit_codes_are_the_documented_ones(third: Run) -> None:
    codes = {name: (third.directory.parent / f"code-{name}").read_text() for name in ("0", "1")}
    assert codes == {"0": str(EXIT_INTERRUPTED), "1": str(EXIT_INTERRUPTED)}
    assert third.code == 1
    assert_no_traceback_of_ours(third.err)
    steps = [line["step"] for line in third.metrics]
    assert steps == list(range(1, len(steps) + 1))
    assert STEPS + 2 <= len(steps) < ENDLESS
    newest = CheckpointFolder.of_run(third.directory).newest()
    assert newest is not None
    assert read_manifest(newest).step == len(steps)


@pytest.mark.parametrize("launcher", get_args(Launcher))
@pytest.mark.parametrize("killed", [1, 0])
def test_a_killed_rank_is_reported_by_the_remaining_one(
    tmp_path: Path, killed: int, launcher: Launcher
) -> None:
    directory = tmp_path / "run"
    (tmp_path / "sitecustomize.py").write_text(KEEP_CODES.format(place=tmp_path))
    overrides = (f"train.steps={ENDLESS}", "checkpoint.every_steps=2")
    options = [part for override in overrides for part in ("--set", override)]
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    process = start([str(write_quick_config(tmp_path)), *options], launcher=launcher, PYTHONPATH=path)
    try:
        wait_for(process, lambda: CheckpointFolder.of_run(directory).newest() is not None)
        os.kill(int((tmp_path / f"process-{killed}").read_text()), signal.SIGKILL)
    finally:
        code, out, err = finish(process)
    assert (tmp_path / f"code-{1 - killed}").exists(), err
    assert (tmp_path / f"code-{1 - killed}").read_text() == str(EXIT_LOST_RANK)
    assert not (tmp_path / f"code-{killed}").exists()
    error, *torchruns = [line for line in err.splitlines() if "lost_rank" in line]
    newest = CheckpointFolder.of_run(directory).newest()
    assert f"; newest checkpoint: {newest}; to resume: the same command with --resume {directory}" in error
    # The connection that broke, or the system's word on the process: whichever is noticed first.
    assert any(why in error for why in (" (Connection ", " (Read error ", f" (rank {killed} ended)"))
    assert "the connection to another rank broke (" in error
    assert "failed after" not in out
    assert_no_traceback_of_ours(err)
    if launcher == "hydraulis":
        assert (code, torchruns) == (EXIT_LOST_RANK, [])
        assert error.startswith(f"hydraulis: error [lost_rank]: SIGKILL ended rank {killed}: ")
        assert err == f"{error}\n"
    else:
        missing = f"rank {killed} ({socket.gethostname()}) ended: "
        assert code == 1
        assert error.startswith(f"hydraulis.train: error [lost_rank]: {missing}")
        # torchrun names the rank whose end it noticed first, and repeats the other one's error.
        assert re.search(r"rank      : [01] \(local_rank: [01]\)", err.partition("Root Cause")[2])
        assert [missing in line for line in torchruns] == [True]


def test_json_is_one_document_and_other_output_goes_to_standard_error(first: Run, third: Run) -> None:
    document = json.loads(third.out)
    assert third.out.count("\n") == 1
    steps = third.metrics
    facts = {name: document[name] for name in ("num_steps", "finished", "first_step", "steps", "last_loss")}
    assert facts == {
        "num_steps": ENDLESS,
        "finished": False,
        "first_step": STEPS + 1,
        "steps": len(steps) - STEPS,
        "last_loss": steps[-1]["loss"],
    }
    assert document["directory"] == str(third.directory)
    assert document["files"] == sorted(str(path) for path in third.directory.iterdir())
    assert f"resuming after step {STEPS} of {third.directory}" in third.err
    assert f"step {STEPS + 1}/{ENDLESS}  loss " in third.err
    assert f"stopped after step {len(steps)} of {ENDLESS}; checkpoint: {third.directory}/" in third.err
    assert steps[:STEPS] == first.metrics


def test_a_refusal_of_every_rank_is_printed_once(tmp_path: Path) -> None:
    config = str(write_config(tmp_path))
    code, out, err = finish(start([config, "--set", "train.device=cuda"], launcher="hydraulis"))
    assert code == EXIT_REFUSED
    assert err.startswith("hydraulis: error [device_missing]: train.device = 'cuda' ")
    assert err.count("\n") == 1
    assert out.count("\n") == 1
    assert not (tmp_path / "run").exists()


class Started(NamedTuple):
    """The call of `run_local_ranks`."""

    ranks: int
    words: Sequence[str]
    max_restarts: int


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Started]:
    """Keep the calls that would start ranks."""
    calls: list[Started] = []
    monkeypatch.delenv("RANK", raising=False)

    def keep(ranks: int, words: Sequence[str], _grace_s: float, max_restarts: int) -> int:
        calls.append(Started(ranks, words, max_restarts))
        return 0

    monkeypatch.setattr(command, "run_local_ranks", keep)
    return calls


@pytest.mark.parametrize(
    ("more", "devices", "ranks"),
    [
        ([], 0, 2),
        (["--ranks", "3"], 0, 3),
        (["--set", "planner.strategies=4x<1>;1x<tp2,pp2>"], 8, 4),
        (["--set", "planner.strategies=search"], 8, 8),
        (["--set", "planner.strategies=search", "--ranks", "5"], 0, 5),
    ],
)
def test_the_number_of_ranks_follows_from_strategies_and_devices(
    tmp_path: Path,
    started: list[Started],
    monkeypatch: pytest.MonkeyPatch,
    more: list[str],
    devices: int,
    ranks: int,
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: devices)
    assert main(["train", str(write_config(tmp_path)), *more]) == 0
    assert [call.ranks for call in started] == [ranks]


def test_ranks_get_the_options_of_the_command(
    tmp_path: Path, started: list[Started], capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(write_config(tmp_path))
    layers = ["--preset", "laptop", "--model", "base", "--set", "train.steps=3", "--resume", "a b"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "load", lambda *_: load(config))
        assert main(["train", config, *layers, "--ranks", "2", "--max-restarts", "4", "--json"]) == 0
    assert started[0].max_restarts == 4
    assert capsys.readouterr().out == ""
    words = make_parser().parse_args(started[0].words)
    given = make_parser().parse_args(["train", config, *layers, "--json"])
    assert with_resume(words) == with_resume(given)
    assert (words.config, words.preset, words.json, words.ranks) == (config, "laptop", True, None)


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (["--set", "train.stepss=9"], "config_unknown_key", "did you mean 'steps'"),
        (["--ranks", "1"], "strategy_unplaceable", "planner.strategies = ['search'] fits any number"),
        (["--set", "planner.strategies=search"], "option_invalid", "--ranks N"),
        (["--set", "planner.strategies=search", "--set", "train.device=cpu"], "option_invalid", "--ranks N"),
    ],
)
def test_a_refusal_before_the_start_starts_no_rank(
    tmp_path: Path,
    started: list[Started],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    more: list[str],
    code: str,
    said: str,
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert said in assert_refused(capsys, ["train", str(write_config(tmp_path)), *more], code)
    assert started == []


def test_a_rank_of_torchrun_starts_no_ranks(
    tmp_path: Path,
    started: list[Started],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "0")
    assert main(["train", str(write_config(tmp_path)), "--ranks", "2"]) == EXIT_REFUSED
    assert "[option_invalid]: --ranks starts ranks" in capsys.readouterr().err
    assert started == []


def test_without_torchrun_the_error_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert command.main([str(write_config(tmp_path))]) == 2
    assert capsys.readouterr().err.startswith("hydraulis.train: error [not_torchrun]: ")
