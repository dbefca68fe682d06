"""One rank on each device that is at hand: the same code, the CPU's results.

Where there is no CUDA device these run on the CPU alone, with another attention kernel than the reference.
"""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from devices import alone_under_torchrun, on_each_device, one_rank
from hydraulis import Scheme
from hydraulis.cli.commands import train as command
from hydraulis.config.kinds import AttentionKind
from hydraulis.data.corpus import Corpus
from hydraulis.data.sources.stdlib import StandardLibrary
from hydraulis.profile.bench import SchemeBench
from hydraulis.runtime.checkpoint.shard import Snapshot, tensor_name
from hydraulis.runtime.ranks.device import CPU
from hydraulis.runtime.ranks.streams import SideStream
from hydraulis.runtime.redistribute.exchange_groups import ExchangeGroups
from hydraulis.runtime.state.optimizer_shard import elements_of
from hydraulis.runtime.step import evaluate, train_step
from hydraulis.runtime.worker import Worker
from profiles import made_up_profile
from runtime.gathered import gather
from runtime.stepped import step
from runtime.tiny import OPTIMIZER, SEED, made_up_corpus, plan_for, train_config
from small_model import small_config

LENGTHS = (30, 20, 9, 5, 2, 2)
CONFIG = small_config(tie_word_embeddings=True, qk_norm=True, attention_bias=True, head_dim=8)
STRATEGY = "1x<1>"


# What `auto` takes; in half precision on CUDA a package where one is installed.
BEST: dict[tuple[str, torch.dtype], list[AttentionKind]] = {
    ("cpu", torch.float32): ["cpu-flash"],
    ("cpu", torch.bfloat16): ["cpu-flash"],
    ("cuda", torch.float32): ["plain"],
    ("cuda", torch.bfloat16): ["flash-attn-3", "flash-attn-4", "flash-attn", "torch-flash"],
}


class Result(NamedTuple):
    """What some iterations came to, on the CPU."""

    losses: list[float]
    gradients: dict[str, Tensor]
    parameters: dict[str, Tensor]
    memory_bytes: int


def make(device: str, dtype: torch.dtype, scheme: str = "<1>", **settings: Any) -> Worker:
    section = train_config(
        dtype=dtype, seed=SEED, device=device, frozen=("model.layers.1.mlp.*",), **settings
    )
    return Worker(CONFIG, OPTIMIZER, section, schemes=[Scheme(scheme)])


def sequence(number: int) -> Any:
    return np.random.default_rng(number).integers(CONFIG.vocab_size, size=LENGTHS[number]).astype(np.uint8)


def iterate(worker: Worker, steps: int, strategy: str = "1x<1>") -> Result:
    plan = plan_for(1, strategy, LENGTHS)
    assert len(plan.replicas[0].micro_batches) > 1
    losses = []
    for _ in range(steps):
        result = train_step(worker, plan, sequence)
        gradients = gather(worker.optimizer_shard, worker.optimizer_shard.gradient) or {}
        losses.append(result.loss)
        assert len(result.measured.timelines[0]) == 2 * len(plan.replicas[0].micro_batches)
        assert all(span.start_ms < span.end_ms for span in result.measured.timelines[0])
    losses.append(evaluate(worker, plan, sequence))
    parameters = gather(worker.optimizer_shard, worker.optimizer_shard.master) or {}
    return Result(losses, gradients, parameters, result.measured.memory_bytes)


@pytest.fixture(scope="module")
def reference() -> Result:
    with one_rank("cpu"):
        return iterate(make("cpu", torch.float64), 3)


def assert_equals(result: Result, reference: Result, tolerance: float) -> None:
    assert result.losses == pytest.approx(reference.losses, rel=tolerance)
    for values, expected in (
        (result.gradients, reference.gradients),
        (result.parameters, reference.parameters),
    ):
        assert values.keys() == expected.keys()
        for name, value in expected.items():
            distance = torch.linalg.norm(values[name].double() - value)
            assert distance <= tolerance * torch.linalg.norm(value), name


@on_each_device
@pytest.mark.parametrize("scheme", ["<1>", "<1,selective>", "<1,full>"])
@pytest.mark.parametrize(
    ("dtype", "attention", "tolerance"),
    [(torch.float64, "plain", 1e-10), (torch.float32, "auto", 1e-3), (torch.bfloat16, "auto", 0.2)],
    ids=["float64", "float32", "bfloat16"],
)
def test_iterations_equal_the_cpus(
    device: str,
    dtype: torch.dtype,
    attention: AttentionKind,
    tolerance: float,
    scheme: str,
    reference: Result,
) -> None:
    with one_rank(device) as own:
        worker = make(device, dtype, scheme, attention=attention)
        assert worker.optimizer_shard.master.device == worker.local_shard.parameter.device == own
        assert worker.kernel.kind in (["plain"] if attention == "plain" else BEST[device, dtype])
        result = iterate(worker, 3, f"1x{scheme}")
    assert_equals(result, reference, tolerance)
    lasting = sum(tensor.nbytes for tensor in worker.persistent)
    # Without a cache, as under a checker of memory, torch's allocator counts nothing.
    if device == "cpu":
        assert lasting == result.memory_bytes
    elif "PYTORCH_NO_CUDA_MEMORY_CACHING" not in os.environ:
        assert lasting < result.memory_bytes


@on_each_device
def test_the_same_iterations_are_equal_to_the_bit(device: str) -> None:
    results = []
    for _ in range(2):
        with one_rank(device):
            results.append(iterate(make(device, torch.float32), 2))
    assert results[0].losses == results[1].losses
    for name, value in results[0].parameters.items():
        assert torch.equal(value, results[1].parameters[name]), name


@on_each_device
def test_a_snapshot_has_the_state_before_the_next_step(device: str) -> None:
    with one_rank(device) as own:
        worker = make(device, torch.float32)
        worker.optimizer_shard.gradient.normal_()
        step(worker.optimizer_shard)
        buffers = worker.optimizer_shard.buffers().items()
        before = {kind: buffer.flat.to("cpu", copy=True) for kind, buffer in buffers}
        snapshot = Snapshot(worker.optimizer_shard, SideStream(own))
        for _ in range(3):
            step(worker.optimizer_shard)
        tensors = snapshot.tensors()
        for kind, buffer in buffers:
            for piece in buffer.slices:
                name = worker.parameters.names[piece.parameter]
                expected = before[kind][elements_of(piece, buffer.first)]
                value = tensors[tensor_name(kind, name)]
                assert value.device.type == "cpu"
                assert torch.equal(value, expected), (kind, name)
        assert not torch.equal(before["master"], worker.optimizer_shard.master.cpu())


def test_a_step_waits_for_each_reader_once() -> None:
    with one_rank("cpu"):
        shard = make("cpu", torch.float32).optimizer_shard
        Snapshot(shard, SideStream(CPU))
        assert len(shard._readers) == 1
        shard.gradient.normal_()
        step(shard)
        assert shard._readers == []


def test_the_transfers_of_frozen_parameters_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    # The only rank of a run would stage nothing.
    monkeypatch.setattr(ExchangeGroups, "is_alone", False)
    with one_rank("cpu"):
        worker = make("cpu", torch.float32)
        persistent = sum(tensor.nbytes for tensor in worker.persistent)
        result = iterate(worker, 1)
        # Memory to permute them in, which gradients have in their staging.
        *_, staging = worker.redistribution.staging
        assert staging.nbytes > 0
        assert result.memory_bytes == persistent


@on_each_device
def test_a_scheme_is_timed_and_its_bytes_are_counted_alike(device: str) -> None:
    with one_rank(device):
        bench = SchemeBench(make(device, torch.float32, attention="plain"), Scheme("<1>"), None)
        bench.initialize_parameters()
        # The first one pays for what is made on first use.
        _, few, many = (bench.time([length]) for length in (4, 4, 1024))
        assert few is not None
        assert many is not None
        assert few.forward_ms > 0
        assert sum(few) < sum(many)
        kept = bench.saved_bytes(64)
    with one_rank("cpu"):
        expected = SchemeBench(make("cpu", torch.float32, attention="plain"), Scheme("<1>"), None)
        saved = expected.saved_bytes(64).per_token
    # The peak of CUDA's allocator has the tensors of a running computation too: here the scores of attention.
    assert kept.per_token == saved if device == "cpu" else kept.per_token > 0.9 * saved


RUN = """
[model]
vocab_size = 256
hidden_size = 32
intermediate_size = 48
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
[data]
max_tokens = 64
tokens_per_batch = 160
[train]
steps = {steps}
device = "{device}"
deterministic = true
[optimizer]
learning_rate = 1e-2
schedule = "constant"
[planner]
strategies = ["1x<1>"]
memory_mib = 64
profile = "{folder}/profile.json"
[checkpoint]
every_steps = 2
[output]
directory = "{folder}/{name}"
"""


def run(folder: Path, device: str, name: str, steps: int, *arguments: str) -> list[dict[str, Any]]:
    path = folder / "run.toml"
    path.write_text(RUN.format(steps=steps, device=device, folder=folder, name=name))
    with pytest.MonkeyPatch.context() as environment:
        alone_under_torchrun(environment)
        environment.setattr(StandardLibrary, "load", _corpus)
        assert command.main([str(path), *arguments]) == 0
    return [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]


def _corpus(_progress: object = None) -> Corpus:
    return made_up_corpus(256)


@on_each_device
def test_a_run_resumes_from_its_checkpoint_as_if_uninterrupted(
    tmp_path: Path, device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "profile.json").write_text(made_up_profile({"<1>": 64}).to_json())
    try:
        straight = run(tmp_path, device, "straight", 6)
        first = run(tmp_path, device, "parted", 3)
        parted = run(tmp_path, device, "parted", 6, "--resume", str(tmp_path / "parted"))
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(first) == 3
    assert [line["loss"] for line in parted] == [line["loss"] for line in straight]
    assert straight[-1]["loss"] < straight[0]["loss"] - 0.3
    assert all(line["memory_bytes"] > 0 for line in straight)
    assert "attention kernel" in capsys.readouterr().out
