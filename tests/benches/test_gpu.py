"""The measurement of one GPU, tiny and on the CPU: it runs, and both ways train the same model."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from devices import alone_under_torchrun
from helpers import ROOT
from hydraulis.config.model import ModelConfig
from hydraulis.model.attention.varlen import KERNELS
from hydraulis.model.flops import training_flops


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("gpu") / "figures.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        alone_under_torchrun(patch)
        arguments = ["--device", "cpu", "--tiny", "--micro-batches", "2", "--json", str(path)]
        patch.setattr(sys, "argv", ["benches.gpu", *arguments])
        assert importlib.import_module("benches.gpu.__main__").main() == 0
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def test_every_kernel_is_timed_or_its_refusal_is_recorded(figures: dict[str, Any]) -> None:
    rows = figures["attention"]
    assert {row["micro_batch"] for row in rows} == {"equal, short", "long tail", "one long"}
    assert [row["kernel"] for row in rows] == [kernel.name for kernel in KERNELS] * 3
    for row in rows:
        is_timed = row["kernel"] in ("torch's flash attention for cpu", "plain attention")
        assert (row["refusal"] is None) is is_timed
        assert (row["both_ms"] > 0) is is_timed


def test_transformers_and_hydraulis_begin_with_the_same_loss(figures: dict[str, Any]) -> None:
    hydraulis, transformers = figures["steps"]
    assert (hydraulis["way"], transformers["way"]) == ("hydraulis", "transformers")
    assert hydraulis["first_loss"] == pytest.approx(transformers["first_loss"], rel=1e-5)
    assert hydraulis["tokens_per_s"] > 0
    assert transformers["tokens_per_s"] > 0


def test_operations_equal_those_that_torch_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    monkeypatch.syspath_prepend(ROOT)
    workload = importlib.import_module("benches.gpu.workload")
    settings = importlib.import_module("benches.gpu.training_step")
    model = ModelConfig(
        vocab_size=48,
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    lengths = [7, 12]
    setting = settings.StepSetting(
        device=torch.device("cpu"),
        dtype=torch.float32,
        model=model,
        micro_batches=[lengths],
        checkpointing="none",
    )
    with settings._transformers(torch.float32, setting) as step, FlopCounterMode(display=False) as counted:
        step()
    # Torch counts no attention on the CPU.
    attention = 3 * model.num_hidden_layers * workload.attention_flops(lengths, 4, model.head_dim)
    assert training_flops(model, 19, setting.squares) - attention == counted.get_total_flops()


def test_in_half_precision_all_ways_begin_with_the_same_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    alone_under_torchrun(monkeypatch)
    main, steps, workload = (
        importlib.import_module(f"benches.gpu.{name}") for name in ("__main__", "training_step", "workload")
    )
    setting = steps.StepSetting(
        device=torch.device("cpu"),
        dtype=torch.bfloat16,
        model=main.TINY,
        micro_batches=[[40, 20], [50]],
        checkpointing="full",
    )
    clock = workload.Clock(setting.device, repetitions=1)
    hydraulis, *others = steps.measure_steps(setting, clock, peak_tflops=None)
    assert [row.way for row in others] == ["transformers, autocast", "transformers, all in half precision"]
    for row in others:
        assert row.first_loss == pytest.approx(hydraulis.first_loss, rel=1e-2)


def test_long_tails_fill_a_micro_batch_to_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    lengths = importlib.import_module("benches.gpu.workload").long_tail(16_384, 4096, seed=0)
    assert sum(lengths) == 16_384
    assert min(lengths) >= 1
    assert max(lengths) <= 4096
    assert max(lengths) > 4 * sorted(lengths)[len(lengths) // 2]


def test_a_missing_device_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["benches.gpu", "--json", str(tmp_path / "none.json")])
    with pytest.raises(SystemExit):
        importlib.import_module("benches.gpu.__main__").main()
    assert "there is no CUDA device" in capsys.readouterr().err
