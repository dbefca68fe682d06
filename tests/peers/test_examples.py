"""Each script of examples/peers runs on the CPU, and learns."""

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from helpers import ROOT, at_least

EXAMPLES = ROOT / "examples/peers"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ACCELERATE = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2"]
COMMANDS = {
    "ddp.py": TORCHRUN,
    "transformers_trainer.py": TORCHRUN,
    "trl_sft.py": TORCHRUN,
    "accelerate_fsdp.py": [*ACCELERATE, "--main_process_port", "0"],
    "lightning_module.py": [sys.executable],
}


@cache
def output(script: str, *arguments: str) -> str:
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT / 'python'}",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    command = [*COMMANDS[script], str(EXAMPLES / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_every_example_is_run() -> None:
    scripts = {path.name for path in at_least(5, EXAMPLES.glob("*.py"))} - {"toy.py"}
    assert scripts == set(COMMANDS)


@pytest.mark.parametrize("script", ["transformers_trainer.py", "trl_sft.py"])
def test_training_with_the_trainer_lowers_the_loss(script: str) -> None:
    found = re.search(r"(\d+) steps, loss ([\d.]+) to ([\d.]+)", output(script))
    assert found is not None
    assert int(found[1]) >= 6
    assert float(found[3]) < 0.85 * float(found[2])


def losses(text: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"step \d+, loss ([\d.]+)", text)]


@pytest.mark.parametrize("arguments", [(), ("--fsdp",)])
def test_the_loss_is_the_mean_of_the_step_for_every_split(arguments: tuple[str, ...]) -> None:
    """DDP with a barrier per step, and accelerate with one per micro-batch, train the same steps."""
    expected = losses(output("ddp.py"))
    assert len(expected) == 8
    assert expected[-1] < 0.7 * expected[0]
    assert losses(output("accelerate_fsdp.py", *arguments)) == pytest.approx(expected, abs=2e-3)


def test_training_with_lightning_lowers_the_loss() -> None:
    found = re.search(r"(\d+) steps, loss of the last ([\d.]+)", output("lightning_module.py"))
    assert found is not None
    assert int(found[1]) == 10
    assert float(found[2]) < 4


def test_the_examples_state_their_commands() -> None:
    for script in COMMANDS:
        first = (EXAMPLES / script).read_text(encoding="utf-8").splitlines()[0]
        assert f"examples/peers/{script}" in first, Path(script)
