"""The examples for several nodes, run with the programs that they call made up; nodes.sh for real, too."""

import json
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from helpers import ROOT
from hydraulis.cli.commands.train import make_parser
from profiles import made_up_profile
from small_model import TINY_SECTION

RUN = (
    TINY_SECTION
    + """
[data]
sources = [{{files = ["{root}/examples/text.jsonl"]}}]
max_tokens = 64
too_long = "truncate"
tokens_per_batch = 120
index_processes = 1

[train]
steps = 2

[planner]
memory_mib = 6
strategies = ["2x<1>", "1x<tp2>"]
profile = "profile.json"

[output]
directory = "run"
"""
)
SLURM = {
    "SLURM_JOB_NODELIST": "node-[0-3]",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_GPUS_ON_NODE": "8",
    "SLURM_JOB_ID": "77",
}


def run(folder: Path, script: str, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a script where `torchrun`, `srun` and `scontrol` only say what they were asked for."""
    programs = folder / "bin"
    programs.mkdir()
    for name, body in {
        "torchrun": 'printf "%s\\n" torchrun "$@"; env | grep ^TORCH_ >&2',
        # It starts what follows its own options, on every node.
        "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
        "scontrol": 'echo "$@" >&2; echo node-0; echo node-1',
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    command = [str(ROOT / "examples" / script), *arguments]
    return subprocess.run(
        command, env=os.environ | environment | {"PATH": path}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("script", "arguments", "environment", "endpoint"),
    [
        ("slurm.sh", [], SLURM, "node-0:29500"),
        ("nodes.sh", ["4", "localhost"], {"PORT": "1234"}, "localhost:1234"),
    ],
)
def test_every_node_starts_its_ranks_of_one_run(
    tmp_path: Path, script: str, arguments: list[str], environment: dict[str, str], endpoint: str
) -> None:
    done = run(tmp_path, script, *arguments, "run.toml", "--set", "model.path=my model", **environment)
    assert done.returncode == 0, done.stderr
    program, *words = done.stdout.splitlines()
    assert program == "torchrun"
    asked = get_args_parser().parse_args(words)
    assert (asked.nnodes, asked.nproc_per_node) == ("4", "8")
    assert (asked.rdzv_backend, asked.rdzv_endpoint) == ("c10d", endpoint)
    assert asked.rdzv_id
    assert asked.max_restarts == 3
    # With the shared store of torch 2.13 no node can be lost that serves it, and none be replaced. A lost
    # node ends a job of Slurm.
    has_own_store = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in done.stderr.splitlines()
    assert has_own_store == (script == "nodes.sh")
    assert (asked.module, asked.training_script) == (True, "hydraulis.train")
    training = make_parser().parse_args(asked.training_script_args)
    assert (training.config, training.resume) == ("run.toml", "latest")
    assert training.set == ["model.path=my model"]


# The first is reserved for what nobody has (RFC 2606); the second is no name, whoever is asked.
@pytest.mark.parametrize("host", ["node-2.invalid", "node..2"])
def test_a_host_without_an_address_is_refused_before_any_rank_waits_for_it(tmp_path: Path, host: str) -> None:
    done = run(tmp_path, "nodes.sh", "4", host, "run.toml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"HOST = '{host}' has no address on ")
    assert "): give the name that hostname prints on one of the nodes" in done.stderr
    assert done.stderr.count("\n") == 1


def on_two_nodes(folder: Path, *arguments: str) -> list[str]:
    """Start nodes.sh twice, as two machines do, with a rank each; give what they print."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    # Else torchrun leaves folders in /tmp.
    settings = {"TMPDIR": str(folder), "GLOO_SOCKET_IFNAME": loopback, "CUDA_VISIBLE_DEVICES": ""}
    settings |= {"PORT": str(port), "RANKS": "1", "OMP_NUM_THREADS": "1"}
    settings |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = [str(ROOT / "examples/nodes.sh"), "2", "127.0.0.1", "run.toml", *arguments]
    nodes = [
        subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        ended = [node.communicate(timeout=120) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0, 0], ended
    return [out for out, _ in ended]


def test_two_nodes_train_one_run_and_resume_it(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(RUN.format(root=ROOT), encoding="utf-8")
    (tmp_path / "profile.json").write_text(
        made_up_profile({"<1>": 64, "<tp2>": 96}).to_json(), encoding="utf-8"
    )
    first = on_two_nodes(tmp_path)
    assert "starting a new run" in "".join(first)
    assert "" in first  # rank 0 alone speaks, whichever node that is on
    assert "resuming after step 2 of" in "".join(on_two_nodes(tmp_path, "--set", "train.steps=3"))
    steps = [
        json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert steps == [1, 2, 3]


@pytest.mark.parametrize("script", ["slurm.sh", "nodes.sh"])
def test_without_a_configuration_the_script_prints_its_usage(tmp_path: Path, script: str) -> None:
    done = run(tmp_path, script)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")


def test_under_slurm_ranks_have_nearly_the_time_that_slurm_gives_them(tmp_path: Path) -> None:
    done = run(tmp_path, "slurm.sh", "run.toml", **SLURM)
    assert "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=100" in done.stderr.splitlines()
    assert "#SBATCH --signal=TERM@120" in (ROOT / "examples/slurm.sh").read_text(encoding="utf-8")


def test_slurm_reads_its_options_before_the_first_command() -> None:
    lines = (ROOT / "examples/slurm.sh").read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    options = dict(
        shlex.split(line)[0].lstrip("-").split("=", 1)
        for line in (line.removeprefix("#SBATCH ") for line in lines[:first] if line.startswith("#SBATCH "))
        if "=" in line
    )
    assert options["ntasks-per-node"] == "1"
    assert options["signal"] == "TERM@120"
    assert not any(line.startswith("#SBATCH") for line in lines[first:])
