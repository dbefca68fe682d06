"""Two ranks on the CPU, and on two CUDA devices where they are: every degree equals one rank on the CPU."""

import pytest
import torch

from devices import on_cuda
from hydraulis.config.kinds import DeviceKind
from ranks import run_ranks
from runtime.devices_workers import Trained, train
from small_model import small_config

EVERY_DEGREE = ("2x<1>", "1x<tp2>", "1x<pp2>", "1x<cp2>", "1x<1>", "1x<pp2>")
# What a rank holds by <1> is not in the order of owners.
WITHOUT_STAGES = ("2x<1>", "1x<tp2>", "1x<cp2>", "2x<1>", "1x<1>", "1x<tp2>")
LENGTHS = (30, 20, 11, 9, 5, 2, 2)
CONFIG = small_config(qk_norm=True, attention_bias=True)
two_devices = (
    *on_cuda,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
)


@pytest.fixture(scope="module")
def alone() -> Trained:
    (trained,) = run_ranks(1, train, "cpu", CONFIG, ["1x<1>"] * len(EVERY_DEGREE), LENGTHS, torch.float64)
    assert isinstance(trained, Trained)
    return trained


@pytest.mark.parametrize("strategies", [EVERY_DEGREE, WITHOUT_STAGES])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=two_devices)])
def test_every_degree_equals_one_rank(
    device: DeviceKind, strategies: tuple[str, ...], alone: Trained
) -> None:
    first, second = run_ranks(2, train, device, CONFIG, strategies, LENGTHS, torch.float64, device=device)
    assert first.losses == second.losses
    assert first.losses == pytest.approx(alone.losses, rel=1e-10)
    assert first.evaluated == pytest.approx(alone.evaluated, rel=1e-10)
    pairs = [*zip(first.gradients, alone.gradients, strict=True), (first.parameters, alone.parameters)]
    for values, expected in pairs:
        assert values.keys() == expected.keys()
        for name, value in expected.items():
            distance = torch.linalg.norm(values[name] - value)
            assert distance <= 1e-10 * torch.linalg.norm(value), name
