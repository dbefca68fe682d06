"""Training of a Hugging Face model on a data file, killed, resumed on another cluster, and exported.

Three kinds of data files are trained, and the ranks of each run are killed once.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch
import transformers

from data.sources.test_token_files import write_megatron
from end_to_end_workers import run_until_killed
from hydraulis import Plan
from hydraulis.cli.main import main
from hydraulis.model.decoder import Decoder
from hydraulis.model.parameters import checkpoint_name
from hydraulis.model.sequences import PackedSequences
from hydraulis.runtime.checkpoint.folder import CheckpointFolder
from hydraulis.runtime.checkpoint.reader import CheckpointReader, read_manifest
from hydraulis.runtime.state.parameters import ModelParameters
from profiles import made_up_profile
from ranks import RankError, run_ranks
from small_model import bind_parameters, logits_of
from train.train_workers import run_commands

STEPS, KILLED_IN = 20, 13
# The same tokens in files of three kinds.
KINDS = {
    "parquet": 'files = ["{folder}/documents.parquet"]',
    "megatron": 'files = ["{folder}/x.bin"], format = "tokens"',
    "jsonl": 'files = ["{folder}/documents.jsonl"]',
}
CONFIG = """
[model]
path = "{folder}/base"

[data]
sources = [{{{source}}}]
max_tokens = 65
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
memory = "in_flight"
strategies = {strategies}
profile = "{folder}/profile.json"

[checkpoint]
every_steps = 2

[output]
directory = "{folder}/{kind}/run"
"""
# With the in-flight limit a pipeline takes the longest documents one at a time.
CAPS = {"<1>": 64, "<tp2>": 96, "<pp2>": 32}


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


def texts() -> list[str]:
    whole = "the quick brown fox jumps over the lazy dog, again and again"
    return [whole[: 8 + 7 * n % 53] for n in range(60)]


def write_documents(path: Path) -> None:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts()))


def write_all_kinds(folder: Path) -> None:
    write_documents(folder / "documents.jsonl")
    pyarrow.parquet.write_table(pyarrow.table({"text": texts()}), folder / "documents.parquet")
    documents = [list(text.encode()) for text in texts()]
    write_megatron(folder, documents, bounds=range(len(documents) + 1))


def write_config(folder: Path, kind: str, *strategies: str) -> str:
    path = folder / kind / "run.toml"
    path.parent.mkdir(exist_ok=True)
    source = KINDS[kind].format(folder=folder)
    listed = json.dumps(list(strategies))
    path.write_text(CONFIG.format(folder=folder, kind=kind, source=source, steps=STEPS, strategies=listed))
    return str(path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Analyse the data, train on four ranks of two nodes, kill them, resume with two, and export."""
    path = tmp_path_factory.mktemp("end-to-end")
    make_model(path / "base")
    write_all_kinds(path)
    (path / "profile.json").write_text(made_up_profile(CAPS).to_json())
    four = [write_config(path, kind, "2x<tp2>", "1x<tp2>+2x<1>", "2x<pp2>") for kind in KINDS]
    for config in four:
        assert main(["analyze", config, "--json"]) == 0
        assert main(["check", config, "--gpus", "4"]) == 0
        with pytest.raises(RankError, match=r"died without a word|Connection closed by peer"):
            run_ranks(4, run_until_killed, [config], KILLED_IN)
    two = [write_config(path, kind, "1x<tp2>", "2x<1>") for kind in KINDS]
    for ended in run_ranks(2, run_commands, [[config, "--resume", "latest"] for config in two])[0]:
        assert ended.code == 0, ended.err
        # A checkpoint is completed between two later steps: that of step 12 may be incomplete.
        assert "resuming after step 10 of" in ended.out or "resuming after step 12 of" in ended.out
        # The model was made for 64 positions, and the profile for 10 GB.
        assert "data.max_tokens = 65 is above max_position_embeddings = 64 of " in ended.out
        assert "planner.memory_mib = 6 " in ended.out
    for kind in KINDS:
        assert main(["export", str(path / kind / "run"), "--output", str(path / kind / "model")]) == 0
    return path


@pytest.fixture(params=KINDS)
def folder(trained: Path, request: pytest.FixtureRequest) -> Path:
    """Return the folder of one kind."""
    return trained / str(request.param)


def lines(path: Path, of: Callable[[str], Any] = json.loads) -> list[Any]:
    return [of(line) for line in path.read_text().splitlines()]


def test_the_kind_of_file_changes_nothing(trained: Path) -> None:
    losses = [[line["loss"] for line in lines(trained / kind / "run" / "metrics.jsonl")] for kind in KINDS]
    # The same ranks train up to step 10; the kill may cost up to two further steps.
    assert losses[0][:10] == losses[1][:10] == losses[2][:10]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert losses[0] == pytest.approx(losses[2], rel=1e-3)


def test_every_step_is_recorded_once_and_the_loss_falls(folder: Path) -> None:
    metrics = lines(folder / "run" / "metrics.jsonl")
    assert [line["step"] for line in metrics] == list(range(1, STEPS + 1))
    assert metrics[-1]["loss"] < metrics[0]["loss"] - 1
    assert [line["learning_rate"] for line in metrics[:2]] == [5e-3, 1e-2]
    assert all(0 < line["gradient_norm"] < 100 for line in metrics)
    evaluations = lines(folder / "run" / "evaluations.jsonl")
    assert [line["step"] for line in evaluations] == [5, 10, 15, 20]
    assert evaluations[-1]["loss"] < evaluations[0]["loss"]
    plans = lines(folder / "run" / "plans.jsonl", Plan.from_json)
    assert [plan.cluster.gpus for plan in plans[:10]] == [4] * 10
    assert [plan.cluster.gpus for plan in plans[12:]] == [2] * 8
    assert {plan.memory for plan in plans} == {"in_flight"}


def test_a_check_reports_that_no_step_is_left(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def resume(*overrides: str) -> str:
        sets = [part for one in overrides for part in ("--set", one)]
        config = str(folder / "run.toml")
        assert main(["check", config, "--gpus", "2", "--resume", "latest", *sets, "--json"]) == 0
        findings = json.loads(capsys.readouterr().out)["findings"]
        return str(next(one["text"] for one in findings if one["name"] == "resume"))

    assert resume() == f"all steps are done, {STEPS} of them: there is nothing left to train"
    shorter = resume(f"train.steps={STEPS - 1}")
    assert shorter == f"{STEPS} steps are done and {STEPS - 1} wanted: there is nothing left to train"
    longer = (f"train.steps={STEPS + 1}", "train.epochs=1000")
    said, changed = resume(*longer).split(", with other settings: ")
    assert said == f"resumes after step {STEPS} of {folder / 'run'}"
    assert changed == f"train.steps = {STEPS + 1}, before {STEPS}; train.epochs = 1000, before absent"


def test_training_began_with_the_models_parameters_and_kept_the_frozen_ones(folder: Path) -> None:
    base, trained = (
        transformers.AutoModelForCausalLM.from_pretrained(path).state_dict()
        for path in (folder.parent / "base", folder / "model")
    )
    assert base.keys() == trained.keys()
    for name, value in base.items():
        assert torch.equal(value, trained[name]) is name.startswith("model.layers.0.mlp."), name
        # Twenty steps with a rate of 0.01 change each value little.
        assert (trained[name] - value).abs().max() < 0.2, name


def test_transformers_and_the_checkpoint_give_the_same_logits(folder: Path) -> None:
    checkpoint = CheckpointFolder.of_run(folder / "run").newest()
    assert checkpoint is not None
    manifest = read_manifest(checkpoint)
    assert (manifest.step, manifest.world_size) == (STEPS, 2)
    parameters = ModelParameters.from_config(manifest.model)
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


def test_the_export_has_the_other_files_of_the_model(folder: Path) -> None:
    assert (folder / "model" / "tokenizer_config.json").read_text() == "{}"
    paths = (folder.parent / "base", folder / "model")
    given, exported = (json.loads((path / "config.json").read_text()) for path in paths)
    # Training used one more position than the initial model has.
    assert {**given, "dtype": "float32", "max_position_embeddings": 65} == exported
