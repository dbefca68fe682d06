"""`hydraulis profile`: local ranks, a profile for planning and training, and refusals."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli.invocation import assert_refused
from hydraulis import Cluster, Planner
from hydraulis.cli.exit import EXIT_INTERRUPTED, EXIT_REFUSED
from hydraulis.cli.main import main
from hydraulis.cli.tables.profile_table import profile_table
from hydraulis.config.run import load
from hydraulis.planner import load_profile
from hydraulis.planner.model_shape import build_model_shape

CONFIG = """
[model]
vocab_size = 256
hidden_size = 32
intermediate_size = 48
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 2
[data]
source = "stdlib"
max_tokens = 256
tokens_per_batch = 512
[train]
steps = 1
[optimizer]
learning_rate = 1e-3
[planner]
strategies = ["2x<1>", "1x<tp2>"]
memory_mib = 64
[output]
directory = "run"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(CONFIG)
    return path


def options(config: Path, *more: str) -> list[str]:
    return ["profile", str(config), "--output", str(config.with_name("p.json")), *more]


def test_ranks_measure_a_profile_that_plans(
    config: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The tests' fork server does not write into the captured output.
    monkeypatch.setattr("hydraulis.cli.ranks.local_ranks.can_fork", lambda _is_stopped: False)
    # Like a run that searches among these.
    searched = ["--schemes", "<1>; <pp2>"]
    measured = options(config, "--ranks", "2", "--seconds", "60", "--precision", "9", *searched)
    assert main(measured) == 0
    output = capfd.readouterr()
    profile = load_profile(config.with_name("p.json"))
    assert profile.schemes == ["<1>", "<pp2>"]
    assert profile.model == build_model_shape(load(config).model)
    assert profile.dtype == "float32"
    assert output.err.startswith("measuring 2 schemes: up to 16 micro-batches")
    assert " 60 s " in output.err
    assert "send among 2 ranks" in output.out
    assert "all_to_all among 2 ranks" in output.out
    assert str(config.with_name("p.json")) in output.out
    assert profile_table(profile, Cluster(gpus=2, gpus_per_node=2)) in output.out
    planner = Planner(profile, Cluster(gpus=2, gpus_per_node=2), strategies=["2x<1>", "1x<pp2>"])
    assert planner.plan([200, 30, 5]).replicas[0].reliability is not None
    # Kept next to the profile, for the same command to continue.
    kept = config.with_name("p.json.measurements.jsonl").read_text().splitlines()
    assert json.loads(kept[0])["ranks"] == 2
    assert len(kept) > 16


@pytest.mark.parametrize(
    "words", [["--output", "p.json"], ["run.toml", "--refine", "run", "--output", "p.json"]]
)
def test_one_source_is_needed(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", *words]) == EXIT_REFUSED
    assert "[option_invalid]" in capsys.readouterr().err


def test_without_ranks_the_error_names_ways_to_start_them(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert main(options(config)) == EXIT_REFUSED
    error = capsys.readouterr().err
    assert error.startswith("hydraulis: error [not_torchrun]: ")
    assert "add --ranks N" in error
    assert "torchrun --standalone --nproc-per-node N -m hydraulis profile RUN.toml" in error


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (["--schemes", " ; "], "strategy_invalid"),
        (["--schemes", "<1>;<tp2"], "strategy_invalid"),
        (["--set", "train.steps=0"], "config_value"),
        (["--output", "missing/p.json"], "file_unwritable"),
        (["--output", "p.txt"], "option_invalid"),
    ],
)
def test_a_refusal_is_printed_once_and_starts_no_rank(
    config: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    more: list[str],
    code: str,
) -> None:
    monkeypatch.delattr("hydraulis.cli.commands.profile.run_local_ranks")
    assert_refused(capsys, options(config, "--ranks", "2", *more), code)


def test_a_measurement_needs_the_memory_that_a_run_takes_from_its_profile(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(CONFIG.replace("memory_mib = 64\n", 'profile = "p.json"\n'))
    assert load(config).planner.memory_mib is None
    assert_refused(capsys, options(config, "--ranks", "2"), "config_missing_key")


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (["--set", "train.stepss=3"], "config_unknown_key"),
        (["--set", "planner.strategies=3x<1>"], "strategy_unplaceable"),
    ],
)
def test_under_torchrun_a_refusal_is_printed_once(config: Path, more: list[str], code: str) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    # Without it torchrun leaves a folder in /tmp.
    command = [*launcher, "--log-dir", str(config.with_name("torchrun")), "-m", "hydraulis"]
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    settings = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": loopback, "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(
        [*command, *options(config, *more)],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.count(f"hydraulis: error [{code}]: ") == 1, ended.stderr
    assert f"refused [{code}]: " in ended.stderr.partition("Root Cause")[2]
    assert ("by --schemes" in ended.stderr) == (code == "strategy_unplaceable")


def test_an_interrupt_names_the_kept_measurements(config: Path) -> None:
    kept = config.with_name("p.json.measurements.jsonl")
    command = [sys.executable, "-m", "hydraulis", *options(config, "--ranks", "2", "--seconds", "600")]
    # No such precision is reached: only the signal ends the measurement.
    with subprocess.Popen([*command, "--precision", "1e-12"], stderr=subprocess.PIPE, text=True) as measuring:
        while not (kept.exists() and kept.read_text().count("\n") > 1):
            assert measuring.poll() is None
            time.sleep(0.1)
        # Not SIGINT, which background processes of a script ignore.
        measuring.terminate()
        assert measuring.stderr is not None
        said = measuring.stderr.read().splitlines()
    assert measuring.returncode == EXIT_INTERRUPTED
    number = kept.read_text().count("\n") - 1
    assert said[-1] == f"{number:,} measurements are kept in {kept}; the same command continues them"
    with subprocess.Popen([*command, "--precision", "1e-12"], stderr=subprocess.PIPE, text=True) as measuring:
        assert measuring.stderr is not None
        first = measuring.stderr.readline()
        measuring.terminate()
        measuring.stderr.read()
    assert f" {number:,} measurements in {kept}" in first


def test_ranks_of_torchrun_start_no_ranks(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    assert main(options(config, "--ranks", "2")) == EXIT_REFUSED
    assert "[option_invalid]: --ranks starts ranks" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["0", "-1", "inf", "nan", "soon"])
def test_times_and_precisions_are_above_zero(config: Path, word: str) -> None:
    assert main(options(config, f"--seconds={word}")) == EXIT_REFUSED


def test_a_missing_run_is_not_refined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "p.json"
    assert main(["profile", "--refine", str(tmp_path / "run"), "--output", str(output)]) == EXIT_REFUSED
    said = capsys.readouterr().err
    assert f"[run_unreadable]: '{tmp_path / 'run'}'" in said
    assert not output.exists()
