"""Adapters of a Hugging Face model: trained, resumed on another number of ranks, exported, loaded by PEFT."""

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from torch import Tensor

from hydraulis.cli.main import main
from hydraulis.config.lora import TARGETS
from hydraulis.runtime.checkpoint.folder import CheckpointFolder
from hydraulis.runtime.checkpoint.reader import read_manifest
from profiles import made_up_profile
from ranks import run_ranks
from test_end_to_end import CAPS, lines, make_model, write_documents
from train.train_workers import run_commands

STEPS = 8
CONFIG = """
[model]
path = "{folder}/base"

[lora]
rank = 4
alpha = 6

[data]
sources = [{{files = ["{folder}/documents.jsonl"]}}]
max_tokens = 64
tokens_per_batch = 160
held_out = 0.1
index_directory = "{folder}/index"
index_processes = 1

[train]
steps = {steps}
dtype = "float64"
timeout_s = 60
evaluate_every = 4

[optimizer]
learning_rate = 1e-2

[planner]
memory_mib = 6
strategies = {strategies}
profile = "{folder}/profile.json"

[checkpoint]
every_steps = 4

[output]
directory = "{folder}/{run}"
"""
TOKENS = torch.arange(60)[None] * 3 % 256


def write_config(folder: Path, run: str, steps: int, *strategies: str) -> str:
    path = folder / f"{run}.toml"
    listed = json.dumps(list(strategies))
    path.write_text(CONFIG.format(folder=folder, run=run, steps=steps, strategies=listed))
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a run on four ranks, and another one on four and then on two; export the second."""
    path = tmp_path_factory.mktemp("lora")
    make_model(path / "base")
    write_documents(path / "documents.jsonl")
    (path / "profile.json").write_text(made_up_profile(CAPS).to_json())
    four = "2x<tp2>", "1x<tp2>+2x<1>", "2x<pp2>"
    whole = write_config(path, "whole", STEPS, *four)
    half = write_config(path, "resumed", STEPS // 2, *four)
    for ended in run_ranks(4, run_commands, [[whole], [half]])[0]:
        assert ended.code == 0, ended.err
    (ended,) = run_ranks(
        2, run_commands, [[write_config(path, "resumed", STEPS, "1x<tp2>", "2x<1>"), "--resume", "latest"]]
    )[0]
    assert ended.code == 0, ended.err
    run = str(path / "resumed")
    assert main(["export", run, "--output", str(path / "adapters")]) == 0
    assert main(["export", run, "--output", str(path / "merged"), "--merged"]) == 0
    return path


def base_model(folder: Path) -> transformers.PreTrainedModel:
    model: transformers.PreTrainedModel = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "base", dtype=torch.float32
    )
    return model


def logits(model: torch.nn.Module) -> Tensor:
    with torch.no_grad():
        result: Tensor = model(TOKENS).logits
    return result


def test_a_run_resumed_on_fewer_ranks_goes_on_as_it_would_have(folder: Path) -> None:
    whole, resumed = (lines(folder / run / "metrics.jsonl") for run in ("whole", "resumed"))
    assert [line["step"] for line in resumed] == list(range(1, STEPS + 1))
    assert [one["loss"] for one in resumed] == pytest.approx([one["loss"] for one in whole], rel=1e-9)
    assert resumed[-1]["loss"] < resumed[0]["loss"] - 0.1
    evaluated = [
        [one["loss"] for one in lines(folder / run / "evaluations.jsonl")] for run in ("whole", "resumed")
    ]
    assert len(evaluated[0]) == 2
    assert evaluated[0] == pytest.approx(evaluated[1], rel=1e-9)
    assert evaluated[0][1] < evaluated[0][0]


# PEFT asks transformers by an old name.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_peft_loads_the_adapters_and_gives_the_merged_models_logits(folder: Path) -> None:
    files = {path.name for path in (folder / "adapters").iterdir()}
    carried = {"generation_config.json", "tokenizer_config.json"}
    assert files == {"adapter_config.json", "adapter_model.safetensors", *carried}
    base = base_model(folder)
    merged_model = transformers.AutoModelForCausalLM.from_pretrained(folder / "merged", dtype=torch.float32)
    merged, plain = logits(merged_model), logits(base)
    adapted = peft.PeftModel.from_pretrained(base, folder / "adapters")
    config: Any = adapted.peft_config["default"]
    assert (config.r, config.lora_alpha) == (4, 6)
    assert config.target_modules == set(TARGETS)
    assert config.base_model_name_or_path == str(folder / "base")
    torch.testing.assert_close(logits(adapted), merged, rtol=0, atol=1e-4)
    assert (merged - plain).abs().max() > 0.1
    adapted.merge_and_unload()
    for name, value in merged_model.state_dict().items():
        torch.testing.assert_close(base.state_dict()[name], value, rtol=0, atol=1e-6)


def test_the_base_stays_what_it_was(folder: Path) -> None:
    checkpoint = CheckpointFolder.of_run(folder / "resumed").newest()
    assert checkpoint is not None
    manifest = read_manifest(checkpoint)
    trained = {record.name for record in manifest.parameters if record.trained}
    assert len(trained) == 2 * 2 * len(TARGETS)
    assert all("lora_" in name for name in trained)
    base = base_model(folder).state_dict()
    merged = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "merged", dtype=torch.float32
    ).state_dict()
    assert base.keys() == merged.keys()
    for name, value in base.items():
        assert torch.equal(value, merged[name]) is (not name.endswith("_proj.weight")), name


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("lora.rank=8", "lora.rank = 4 and the run has 8"),
        ("lora.alpha=8", "lora.alpha = 6.0 and the run has 8.0"),
        ("lora.rank=0", "lora.rank = 4 and the run has "),
    ],
)
def test_a_run_is_not_resumed_with_other_adapters(
    folder: Path, override: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(folder, "resumed", STEPS, "2x<1>")
    given = ["check", config, "--gpus", "2", "--resume", "latest", "--set", override, "--json"]
    assert main(given) == 2
    findings = json.loads(capsys.readouterr().out)["findings"]
    (refusal,) = (one for one in findings if one["code"] == "checkpoint_mismatch")
    assert says in refusal["text"]
