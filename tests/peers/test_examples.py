"""Each script of examples/peers runs on the CPU, and learns."""

import re
import sys
from functools import cache
from pathlib import Path

import pytest

from helpers import ROOT, at_least
from peers import launch

EXAMPLES = ROOT / "examples/peers"
COMMANDS = {
    "ddp.py": launch.TORCHRUN,
    "transformers_trainer.py": launch.TORCHRUN,
    "trl_sft.py": launch.TORCHRUN,
    "accelerate_fsdp.py": launch.TORCHRUN,
    "lightning_module.py": [sys.executable],
    "torchtitan_rows.py": launch.TORCHRUN,
    "verl_micro_batches.py": [sys.executable],
    "trl_async_grpo.py": [sys.executable],
    "axolotl_multipack.py": [sys.executable],
    "megatron_packed.py": [sys.executable],
    "slime_schedule.py": [sys.executable],
}


@cache
def output(script: str, *arguments: str) -> str:
    return launch.output(*COMMANDS[script], str(EXAMPLES / script), *arguments)


def test_every_example_is_run() -> None:
    scripts = {path.name for path in at_least(11, EXAMPLES.glob("*.py"))} - {"toy.py"}
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
    said = output("accelerate_fsdp.py", *arguments)
    assert said.startswith("2 processes")
    assert losses(said) == pytest.approx(expected, abs=2e-3)


def test_training_with_lightning_lowers_the_loss() -> None:
    found = re.search(r"(\d+) steps, loss of the last ([\d.]+)", output("lightning_module.py"))
    assert found is not None
    assert int(found[1]) == 10
    assert float(found[2]) < 4


def test_training_with_torchtitan_s_loader_lowers_the_loss() -> None:
    found = losses(output("torchtitan_rows.py"))
    assert len(found) == 8
    assert found[-1] < 0.8 * found[0]


def ratios(script: str) -> tuple[float, float]:
    """Return the ratio to the mean before and after."""
    found = dict(re.findall(r"^(\w+): ([\d.]+) of the mean, \d+ micro-batches", output(script), re.MULTILINE))
    return float(found["before"]), float(found["after"])


@pytest.mark.parametrize(
    ("script", "most"),
    [("trl_async_grpo.py", 1.3), ("axolotl_multipack.py", 1.01)],
)
def test_the_slowest_rank_is_nearer_to_the_mean_than_before(script: str, most: float) -> None:
    before, after = ratios(script)
    assert after < before
    assert after < most


def test_verl_s_micro_batches_are_as_even_as_by_karmarkar_karp() -> None:
    before, after = ratios("verl_micro_batches.py")
    assert after < before + 1e-4
    equal = re.findall(r"([\d.]+) of the mean for .* equal numbers", output("verl_micro_batches.py"))
    before, after = map(float, equal)
    assert after < 1.001 < before


def test_megatron_s_data_is_packed_under_the_cap() -> None:
    said = output("megatron_packed.py")
    tokens = [int(number) for number in re.findall(r"^(\d+) tokens, \d+ sequences", said, re.MULTILINE)]
    assert len(tokens) >= 4
    assert max(tokens) <= 1024
    assert "lost to padding" in said


def test_slime_s_schedule_is_balanced() -> None:
    found = re.search(r"^([\d.]+) of the mean", output("slime_schedule.py"), re.MULTILINE)
    assert found is not None
    assert float(found[1]) < 1.1


def test_the_examples_state_their_commands() -> None:
    for script in COMMANDS:
        first = (EXAMPLES / script).read_text(encoding="utf-8").splitlines()[0]
        assert f"examples/peers/{script}" in first, Path(script)
