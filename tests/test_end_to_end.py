"""From a Hugging Face model and a jsonl file to a Hugging Face model, over a kill and on another cluster."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from end_to_end_workers import run_until_killed
from hydraulis import Plan
from hydraulis.cli.main import main
from hydraulis.model.decoder import Decoder, checkpoint_name
from hydraulis.model.packed import PackedSequences
from hydraulis.runtime.checkpoint.folder import CheckpointFolder
from hydraulis.runtime.checkpoint.reader import CheckpointReader, read_manifest
from hydraulis.runtime.parameters import ModelParameters
from profiles import made_up_profile
from ranks import RankError, run_ranks
from small_model import bind_parameters, logits_of
from train_workers import run_commands

STEPS, KILLED_IN = 10, 6
CONFIG = """
[model]
path = "{folder}/base"

[data]
sources = [{{files = ["{folder}/documents.jsonl"]}}]
max_tokens = 64
tokens_per_batch = 160
held_out = 0.1
index_directory = "{folder}/index"
index_processes = 1

[train]
steps = {steps}
timeout_s = 60
frozen = ["model.layers.0.mlp.*"]
evaluate_every = 5

[optimizer]
learning_rate = 1e-2
schedule = "cosine"
warmup_steps = 2

[planner]
memory_mib = 6
strategies = {strategies}
profile = "{folder}/profile.json"

[checkpoint]
every_steps = 2

[output]
directory = "{folder}/run"
"""
CAPS = {"<1>": 64, "<tp2>": 96, "<pp2>": 64}


def make_model(folder: Path) -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.1,
        tie_word_embeddings=False,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="40KB")
    (folder / "tokenizer_config.json").write_text("{}")


def write_documents(path: Path) -> None:
    texts = [
        "the quick brown fox jumps over the lazy dog, again and again"[: 8 + 7 * n % 53] for n in range(60)
    ]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def write_config(folder: Path, *strategies: str) -> str:
    path = folder / "run.toml"
    path.write_text(CONFIG.format(folder=folder, steps=STEPS, strategies=json.dumps(list(strategies))))
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train on four ranks, kill them, go on with two, and export."""
    path = tmp_path_factory.mktemp("end-to-end")
    make_model(path / "base")
    write_documents(path / "documents.jsonl")
    (path / "profile.json").write_text(made_up_profile(CAPS).to_json())
    config = write_config(path, "2x<tp2>", "1x<tp2>+2x<1>", "2x<pp2>")
    with pytest.raises(RankError, match=r"died without a word|Connection closed by peer"):
        run_ranks(4, run_until_killed, [config], KILLED_IN)
    config = write_config(path, "1x<tp2>", "2x<1>")
    (ended,), _ = run_ranks(2, run_commands, [[config, "--resume", "latest"]])
    assert ended.code == 0, ended.err
    # A checkpoint is completed between two later steps: that of step 6 may not have been.
    assert "going on after step 4 of" in ended.out or "going on after step 6 of" in ended.out
    assert main(["export", str(path / "run"), "--output", str(path / "model")]) == 0
    return path


def lines(path: Path, of: Callable[[str], Any] = json.loads) -> list[Any]:
    return [of(line) for line in path.read_text().splitlines()]


def test_every_step_is_there_once_and_the_loss_falls(folder: Path) -> None:
    metrics = lines(folder / "run" / "metrics.jsonl")
    assert [line["step"] for line in metrics] == list(range(STEPS))
    assert metrics[-1]["loss"] < metrics[0]["loss"] - 1
    assert [line["learning_rate"] for line in metrics[:2]] == [5e-3, 1e-2]
    assert all(0 < line["gradient_norm"] < 100 for line in metrics)
    evaluations = lines(folder / "run" / "evaluations.jsonl")
    assert [line["step"] for line in evaluations] == [5, 10]
    assert evaluations[1]["loss"] < evaluations[0]["loss"]
    plans = lines(folder / "run" / "plans.jsonl", Plan.from_json)
    assert [plan.cluster.gpus for plan in plans[:4]] == [4] * 4
    assert [plan.cluster.gpus for plan in plans[6:]] == [2] * 4


def test_training_began_with_the_models_parameters_and_left_the_frozen_ones(folder: Path) -> None:
    base, trained = (
        transformers.AutoModelForCausalLM.from_pretrained(folder / name).state_dict()
        for name in ("base", "model")
    )
    assert base.keys() == trained.keys()
    for name, value in base.items():
        assert torch.equal(value, trained[name]) is name.startswith("model.layers.0.mlp."), name
        # A rate of 0.01 in ten steps takes nothing far from where it was.
        assert (trained[name] - value).abs().max() < 0.1, name


def test_transformers_and_the_checkpoint_give_the_same_logits(folder: Path) -> None:
    checkpoint = CheckpointFolder.of_run(folder / "run").newest()
    assert checkpoint is not None
    manifest = read_manifest(checkpoint)
    assert (manifest.step, manifest.world_size) == (STEPS, 2)
    parameters = ModelParameters.of(manifest.model)
    with torch.device("meta"):
        decoder = Decoder(manifest.model)
    with CheckpointReader(checkpoint, manifest) as reader:
        bind_parameters(
            decoder,
            lambda name: parameters.view(reader.read(name, 0, parameters.shapes[name].numel()), name),
        )
    exported = transformers.AutoModelForCausalLM.from_pretrained(folder / "model")
    assert {checkpoint_name(name) for name in parameters.names} == set(exported.state_dict())
    token_T = torch.arange(60) * 3 % 256
    mine = logits_of(decoder, token_T, PackedSequences.from_lengths([60], "cpu"))
    torch.testing.assert_close(mine, exported(token_T[None]).logits[0], rtol=0, atol=1e-4)


def test_the_export_has_the_files_that_the_model_came_with(folder: Path) -> None:
    assert (folder / "model" / "tokenizer_config.json").read_text() == "{}"
    given, exported = (json.loads((folder / name / "config.json").read_text()) for name in ("base", "model"))
    assert {**given, "dtype": "float32"} == exported
