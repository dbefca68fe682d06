"""The measurement of one GPU, tiny and on the CPU: it runs, and both ways train the same model."""

import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from devices import alone_under_torchrun
from helpers import ROOT
from hydraulis.model.attention.varlen import KERNELS
from hydraulis.model.flops import training_flops
from small_model import small_config

# torch.compile looks at each tensor that it finds.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    # The compiler's own.
    pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("gpu") / "figures.json"
    record = str(path.parent)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        alone_under_torchrun(patch)
        arguments = [
            "--device",
            "cpu",
            "--tiny",
            "--micro-batches",
            "2",
            "--json",
            str(path),
            "--record",
            record,
        ]
        patch.setattr(sys, "argv", ["benches.gpu", *arguments])
        assert importlib.import_module("benches.gpu.__main__").main() == 0
    result: dict[str, Any] = json.loads(path.read_text())
    (page,) = path.parent.glob("*.md")
    return result | {"page": page.read_text(), "page_name": page.name}


def test_every_kernel_is_timed_or_its_refusal_is_recorded(figures: dict[str, Any]) -> None:
    rows = figures["attention"]
    assert {row["micro_batch"] for row in rows} == {"equal, short", "long tail", "one long"}
    assert [row["kernel"] for row in rows] == [kernel.name for kernel in KERNELS] * 3
    for row in rows:
        is_timed = row["kernel"] in ("torch's flash attention for cpu", "plain attention")
        assert (row["refusal"] is None) is is_timed
        assert (row["both_ms"] > 0) is is_timed


def test_transformers_and_hydraulis_begin_with_the_same_loss(figures: dict[str, Any]) -> None:
    for part in ("step-1b", "step-8b"):
        hydraulis, transformers, compiled = figures[part]["steps"]
        ways = [row["way"] for row in (hydraulis, transformers, compiled)]
        assert ways == ["hydraulis", "transformers", "torchtitan's form"]
        for row in (hydraulis, transformers, compiled):
            assert row["refusal"] is None
            assert row["tokens_per_s"] > 0
        for row in (transformers, compiled):
            assert hydraulis["first_loss"] == pytest.approx(row["first_loss"], rel=1e-5)


def test_the_kernels_of_a_step_are_summed_by_kind(figures: dict[str, Any]) -> None:
    for part in ("kinds-1b", "kinds-8b"):
        rows = {row["kind"]: row for row in figures[part]["kinds"]}
        assert list(rows) == ["attention", "matrices", "optimizer", "other"]
        assert all(row["ms"] > 0 and row["kernels"] > 0 for row in rows.values())
        # The peak of a CPU is not known.
        assert all(row["times_peak"] is None for row in rows.values())


def test_a_kind_of_work_has_its_time_at_peak() -> None:
    """Kernels of an H200's step, against the operations of 4 layers of 8 billion parameters by hand."""
    kinds = importlib.import_module("benches.gpu.kinds")
    shapes = importlib.import_module("benches.gpu.shapes")
    named = {
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<cutlass::bfloat16_t>>": "attention",
        "nvjet_sm90_tss_128x256_64x4_2x1_v_badd_coopA_NTN": "matrices",
        "multi_tensor_apply_kernel<at::native::FusedOptimizerTensorListMetadata<4>>": "optimizer",
        "_multiply": "other",
    }
    for name, expected in named.items():
        assert next(kind for kind, pattern in kinds.KINDS.items() if pattern.search(name)) == expected
    setting = Mock(model=shapes.EIGHT_BILLION, lengths=[3_000, 1_000], squares=10_000_000)
    at_peak = kinds._at_peak(setting, 989.0)
    layer = 4096 * (2 * 4096 + 2 * 1024 + 3 * 14_336)
    assert at_peak["matrices"] == pytest.approx(6 * (4 * layer + 4096 * 128_256) * 4_000 / 989e9)
    assert at_peak["attention"] == pytest.approx(7 * 4 * 4096 * 10_000_000 / 989e9)
    assert kinds._at_peak(setting, None) == {}


def test_the_record_names_the_machine_and_has_every_part(figures: dict[str, Any]) -> None:
    machine = figures["machine"]
    assert {"date", "commit", "python", "torch", "load", "device"} <= machine.keys()
    assert figures["page_name"].startswith(machine["date"][:10])
    titles = (
        *("Attention kernels", "A step of 1.1", "A step of 4 layers", "Predicted by", "Pieces of work"),
        *("Kinds of work in a step of 1.1", "Kinds of work in a step of 4 layers"),
        "Collectives of a tensor group",
    )
    for part in (*titles, machine["torch"], machine["device"], "benches.gpu --device cpu --tiny"):
        assert part in figures["page"]
    assert figures["failed"] == {}
    assert "Not measured" not in figures["page"]


def test_planned_times_and_memory_are_compared_with_measured_ones(figures: dict[str, Any]) -> None:
    found = figures["profile"]
    assert found["steps"] == 8
    assert 0 <= found["median_time_error"] <= found["worst_time_error"]
    assert found["held_bytes"] > 0
    assert found["profile"]["schemes"][0]["scheme"] == "<1>"


def test_errors_leave_the_first_step_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    errors = importlib.import_module("benches.gpu.prediction").errors

    def step(planned: float, memory: tuple[int, int]) -> dict[str, Any]:
        return {
            "planned_ms": planned,
            "measured_ms": 100.0,
            "rank_planned_bytes": [memory[0]],
            "rank_peak_bytes": [memory[1]],
            "tokens_per_s": 5.0,
            "mfu": 0.5,
        }

    found = errors([step(900.0, (1, 99)), step(90.0, (60, 50)), step(120.0, (70, 55)), step(130.0, (65, 54))])
    assert found["median_time_error"] == pytest.approx(0.2)
    assert found["worst_time_error"] == pytest.approx(0.3)
    assert (found["planned_bytes"], found["held_bytes"], found["steps"]) == (70, 55, 3)


def test_every_piece_is_timed_in_each_of_its_ways(figures: dict[str, Any]) -> None:
    rows = figures["rows"]
    assert len({row["piece"] for row in rows}) >= 10
    # Triton compiles for CUDA devices.
    assert not [row for row in rows if "compiled" in row["way"]]
    assert [row["way"] for row in rows if row["refusal"] is not None or row["ms"] <= 0] == []


def test_collectives_are_timed_between_two_ranks(figures: dict[str, Any]) -> None:
    found = {(row["piece"], row["way"]): row for row in figures["collectives"]}
    # Only CUDA devices have symmetric memory.
    assert list(found) == [
        ("reduce-scatter of 2 ranks", "exchanged, then summed by one kernel"),
        ("reduce-scatter of 2 ranks", "hydraulis, the backend's own"),
        ("all-gather of 2 ranks", "the backend's own"),
    ]
    assert [row["refusal"] for row in found.values()] == [None] * 3
    assert all(row["ms"] > 0 for row in found.values())


def test_ranks_that_end_leave_the_rows_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    module, workload = (
        importlib.import_module(f"benches.gpu.{name}") for name in ("collectives", "workload")
    )
    monkeypatch.setattr(module, "_run_rank", end_after_a_row)
    clock = workload.Clock(torch.device("cpu"), 1)
    row, failed = module.measure_collectives(clock.device, clock, tiny=True)
    assert (row.piece, row.refusal) == ("first", None)
    assert "exit code 3" in failed.refusal


def end_after_a_row(rank: int, setting: Any, _port: str) -> None:
    if rank == 0:
        Path(setting.path).write_text(json.dumps({"piece": "first", "way": "a way", "ms": 1.0}) + "\n")
        os._exit(3)
    # The other rank waits for it, and is ended.
    signal.pause()


def test_ranks_that_hang_are_killed_after_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    module = importlib.import_module("benches.gpu.collectives")
    monkeypatch.setattr(module, "_LIMIT_S", 0.0)
    context = Mock()
    context.join.return_value = False
    context.processes = [Mock(), Mock()]
    assert "more than 0 s" in module._wait(context)
    for process in context.processes:
        process.kill.assert_called_once_with()


def test_a_part_or_a_way_that_fails_is_noted_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(ROOT)
    alone_under_torchrun(monkeypatch)
    main, rows, steps = (
        importlib.import_module(f"benches.gpu.{name}") for name in ("__main__", "rows", "training_step")
    )

    def fail(*_arguments: object) -> Any:
        message = "out of memory"
        raise RuntimeError(message)

    monkeypatch.setattr(main, "measure_attention", fail)
    monkeypatch.setattr(steps, "_hugging_face_model", fail)
    broken = rows.Piece(name="broken", make=lambda *_: {"a way": fail})
    monkeypatch.setattr(
        rows, "PIECES", [rows.Piece(name="without inputs", make=fail), broken, rows.PIECES[0]]
    )
    parts = ["attention", "step-1b", "rows"]
    words = ["--device", "cpu", "--tiny", "--micro-batches", "1", "--json", str(tmp_path / "found.json")]
    monkeypatch.setattr(sys, "argv", ["benches.gpu", *words, "--record", str(tmp_path), "--only", *parts])
    assert main.main() == 1
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["failed"].keys() == {"attention"}
    assert [row["refusal"] is None for row in found["steps"]] == [True, False, True]
    assert [row["refusal"] is None for row in found["rows"]] == [False, False, True, True]
    (page,) = tmp_path.glob("*.md")
    assert "- attention: RuntimeError: out of memory" in page.read_text()


def test_operations_equal_those_that_torch_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    monkeypatch.syspath_prepend(ROOT)
    workload = importlib.import_module("benches.gpu.workload")
    settings = importlib.import_module("benches.gpu.training_step")
    model = small_config()
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
    # Torch counts whole squares of attention, from version 2.15 on also on the CPU.
    products = sum(
        flops
        for operator, flops in counted.get_flop_counts()["Global"].items()
        if "attention" not in str(operator)
    )
    attention = (
        3
        * model.num_hidden_layers
        * workload.attention_flops(lengths, model.num_attention_heads, model.head_dim)
    )
    assert training_flops(model, 19, setting.squares) - attention == products


def test_in_half_precision_all_ways_begin_with_the_same_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    alone_under_torchrun(monkeypatch)
    shapes, steps, workload = (
        importlib.import_module(f"benches.gpu.{name}") for name in ("shapes", "training_step", "workload")
    )
    setting = steps.StepSetting(
        device=torch.device("cpu"),
        dtype=torch.bfloat16,
        model=shapes.TINY,
        micro_batches=[[40, 20], [50]],
        checkpointing="full",
    )
    clock = workload.Clock(setting.device, repetitions=1)
    hydraulis, *others = steps.measure_steps(setting, clock, peak_tflops=None)
    halves = ["transformers, autocast", "transformers, all in half precision"]
    assert [row.way for row in others] == [*halves, "torchtitan's form"]
    for row in others:
        assert row.refusal is None
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
