"""A model of transformers, read by two ranks, written as a checkpoint, exported: the logits are the same."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedModel

from cli.reports import collect_reports, interrupt_at
from data.small_tokenizer import write_tokenizer
from helpers import at_least
from hydraulis.cli.exit import EXIT_REFUSED
from hydraulis.cli.main import main
from hydraulis.config.data import DataConfig, SourceConfig
from hydraulis.data.tokenization.chat_template import CHATML, ChatTemplate
from hydraulis.errors import HydraulisError
from hydraulis.runtime.checkpoint.folder import CheckpointFolder, checkpoint_of
from hydraulis.runtime.hugging_face import export as export_module
from hydraulis.runtime.hugging_face.adapters import merged
from hydraulis.runtime.hugging_face.export import _made_whole, export
from hydraulis.runtime.hugging_face.files import TEMPLATE, carry, tokenizer_note
from hydraulis.runtime.records.run_directory import CARRIED, RunDirectory
from ranks import run_ranks
from runtime.hugging_face.hugging_face_workers import to_checkpoints

SHAPE: dict[str, Any] = {
    "vocab_size": 53,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"rope_parameters": LLAMA3}),
    "llama tied": ("Llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 10}),
    "mistral tied": ("Mistral", {"sliding_window": 53, "tie_word_embeddings": True}),
    "qwen2": ("Qwen2", {"rope_parameters": YARN}),
    "qwen2 tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3 tied": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True, "attention_bias": True}),
}
TOKENS = torch.arange(53)[None].flip(1)


def make(family: str, changes: dict[str, Any]) -> PreTrainedModel:
    config = getattr(transformers, f"{family}Config")(**SHAPE | changes)
    torch.manual_seed(0)
    model: PreTrainedModel = getattr(transformers, f"{family}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn(len(parameter)))
    return model


def logits(folder: Path) -> torch.Tensor:
    model: PreTrainedModel = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        result: torch.Tensor = model(TOKENS).logits
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder for each model, with its files and a run that has a checkpoint of it."""
    path = tmp_path_factory.mktemp("models")
    for name, (family, changes) in FAMILIES.items():
        # In several files, but for one.
        size = "10GB" if name == "llama" else "20KB"
        make(family, changes).save_pretrained(path / name, max_shard_size=size)
        (path / name / "tokenizer.json").write_text(name)
    run_ranks(2, to_checkpoints, [path / name for name in FAMILIES])
    return path


@pytest.mark.parametrize("carried", [True, False])
@pytest.mark.parametrize("name", FAMILIES)
def test_transformers_gives_the_same_logits(
    folder: Path, tmp_path: Path, name: str, *, carried: bool
) -> None:
    run = folder / name / "run"
    shutil.rmtree(run / CARRIED, ignore_errors=True)
    if carried:
        carry(folder / name, RunDirectory(run), DataConfig(tokenizer=str(folder / name), tokens_per_batch=1))
    checkpoint = CheckpointFolder.of_run(run).newest()
    assert checkpoint is not None
    export(checkpoint, tmp_path / "model", torch.float32, shard_bytes=30_000)
    assert len(list((tmp_path / "model").glob("model-*.safetensors"))) > 1
    torch.testing.assert_close(logits(tmp_path / "model"), logits(folder / name), rtol=0, atol=1e-4)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["tie_word_embeddings"] is ("tied" in name)
    # Those of the run, which are more than the model came with.
    assert config["max_position_embeddings"] == 8192
    if carried:
        assert config["model_type"] == name.split()[0]
        assert (tmp_path / "model" / "tokenizer.json").read_text() == name


def test_the_original_positions_of_a_scaling_stay_unchanged(folder: Path, tmp_path: Path) -> None:
    run = folder / "qwen2" / "run"
    carry(folder / "qwen2", RunDirectory(run), DataConfig(tokens_per_batch=1))
    config = json.loads((run / CARRIED / "config.json").read_text()) | {"max_position_embeddings": 16}
    config["rope_parameters"].pop("original_max_position_embeddings")
    (run / CARRIED / "config.json").write_text(json.dumps(config))
    export(checkpoint_of(run), tmp_path / "model", torch.float32)
    exported = json.loads((tmp_path / "model" / "config.json").read_text())
    assert exported["max_position_embeddings"] == 8192
    torch.testing.assert_close(logits(tmp_path / "model"), logits(folder / "qwen2"), rtol=0, atol=1e-4)


def test_the_tokenizer_writes_conversations_as_the_run_did(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "llama" / "run", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / CARRIED, ignore_errors=True)
    # Of its own it has another template.
    of_class = "PreTrainedTokenizerFast"
    base = write_tokenizer(tmp_path / "base", tokenizer_class=of_class, chat_template="none")
    chat = SourceConfig(files=("chat.jsonl",), format="chat")
    data = DataConfig(tokenizer=str(base), tokens_per_batch=1)
    carry(base, RunDirectory(tmp_path / "run"), replace(data, sources=(chat,), chat_template="chatml"))
    export(checkpoint_of(tmp_path / "run"), tmp_path / "model", torch.float32)
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    written = tokenizer.apply_chat_template(talk, tokenize=False)
    assert written == ChatTemplate(CHATML, {}).render(talk).text
    # Where no conversations were written, or by its own template, that stays.
    for other in (replace(data, chat_template="chatml"), data):
        carry(base, RunDirectory(base), other)
        assert not (base / CARRIED / TEMPLATE).exists()


def test_a_tokenizer_that_did_not_read_the_text_is_not_exported(tmp_path: Path) -> None:
    base = write_tokenizer(tmp_path / "base")
    (base / "config.json").write_text("{}")
    text, tokens = SourceConfig(files=("a.jsonl",)), SourceConfig(files=("a.npy",), format="tokens")
    cases = (
        *(((text,), "bytes", True), ((), "bytes", True)),
        *(((tokens,), "bytes", False), ((text,), str(base), False)),
    )
    for number, (sources, tokenizer, stays) in enumerate(cases):
        run = tmp_path / str(number)
        run.mkdir()
        data = DataConfig(sources=sources, tokenizer=tokenizer, tokens_per_batch=1)
        carry(base, RunDirectory(run), data)
        assert (run / CARRIED / "config.json").exists()
        assert (run / CARRIED / "tokenizer.json").exists() is not stays
        assert (f"set data.tokenizer = '{base}'" in tokenizer_note(str(base), data)) is stays
    (base / "tokenizer.json").unlink()
    assert tokenizer_note(str(base), DataConfig(tokens_per_batch=1)) == ""


def test_the_command_takes_a_run_or_a_checkpoint(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder / "qwen3" / "run"
    shutil.rmtree(run / CARRIED, ignore_errors=True)
    newest = CheckpointFolder.of_run(run).newest()
    for source, dtype in ((run, torch.float32), (newest, torch.bfloat16)):
        name = str(dtype).removeprefix("torch.")
        assert main(["export", str(source), "--output", str(tmp_path / name), "--dtype", name]) == 0
        assert capsys.readouterr().out.endswith(f"as {name}\nwritten to {tmp_path / name}\n")
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / name)
        assert model.dtype == dtype
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == [
            "config.json",
            "model.safetensors",
        ]
    assert main(["export", str(run), "--output", str(tmp_path / "again"), "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert files == [str(tmp_path / "again" / name) for name in ("config.json", "model.safetensors")]


def test_the_export_reports_progress(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports = collect_reports(monkeypatch)
    assert main(["export", str(folder / "llama" / "run"), "--output", str(tmp_path / "model")]) == 0
    assert reports[0].name == "loading torch"
    shares = [one.done for one in reports if one.name == "exporting"]
    assert shares == sorted(set(at_least(10, shares)))
    assert shares[0] == 0
    assert 500 < shares[-1] < 1000


def test_values_beyond_a_type_are_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_module, "merged", lambda *given: merged(*given) * 1e7)
    command = ["export", str(folder / "llama" / "run"), "--output", str(tmp_path / "model")]
    assert main([*command, "--dtype", "bfloat16"]) == 0
    shutil.rmtree(tmp_path / "model")
    assert main([*command, "--dtype", "float16"]) == EXIT_REFUSED
    assert list(tmp_path.iterdir()) == []


def test_two_exports_to_one_folder_keep_apart(tmp_path: Path) -> None:
    first, second = (_made_whole(tmp_path / "model") for _ in range(2))
    for export_of, name in ((first, "first"), (second, "second")):
        (export_of.__enter__() / name).touch()
    first.__exit__(None, None, None)
    with pytest.raises(HydraulisError, match="cannot be written"):
        second.__exit__(None, None, None)
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "first"]


def test_an_interrupt_leaves_no_folder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_at(monkeypatch, "exporting")
    assert main(["export", str(folder / "llama" / "run"), "--output", str(tmp_path / "model")]) == 130
    assert list(tmp_path.iterdir()) == []


def test_arguments_are_refused_before_torch_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    script = (
        "import sys\n"
        "from hydraulis.cli.main import main\n"
        "from hydraulis.runtime.checkpoint.manifest import MANIFEST\n"
        "code = main(['export', '.', '--output', 'elsewhere'])\n"
        "open(MANIFEST, 'w').close()\n"
        "code += main(['export', '.', '--output', 'model'])\n"
        "sys.exit(f'{code} {\"torch\" in sys.modules}')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    codes = re.findall(r"^hydraulis: error \[(\w+)\]: ", ended.stderr, re.MULTILINE)
    assert codes == ["checkpoint_missing", "file_unwritable"]
    assert ended.stderr.splitlines()[-1] == "4 False"


def test_readers_of_the_folder_may_read_the_parameters(folder: Path, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        checkpoint = checkpoint_of(folder / "llama" / "run")
        export(checkpoint, tmp_path / "model", torch.float32, shard_bytes=20_000)
    finally:
        os.umask(before)
    files = at_least(4, list((tmp_path / "model").iterdir()))
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o640}


def test_a_run_that_cannot_be_exported_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder / "llama" / "run"
    (tmp_path / "file").write_text("")
    for source, output, code in (
        (tmp_path, tmp_path / "model", "checkpoint_missing"),
        (run, tmp_path, "file_unwritable"),
        (run, tmp_path / "file" / "model", "file_unwritable"),
    ):
        assert main(["export", str(source), "--output", str(output)]) == 2
        assert capsys.readouterr().err.startswith(f"hydraulis: error [{code}]: ")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_torn_checkpoint_leaves_no_folder(folder: Path, tmp_path: Path) -> None:
    checkpoint = CheckpointFolder.of_run(folder / "mistral" / "run").newest()
    assert checkpoint is not None
    shard = checkpoint / "state-00001-of-00002.safetensors"
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])
    try:
        with pytest.raises(HydraulisError) as refusal:
            export(checkpoint, tmp_path / "model", torch.float32)
    finally:
        shard.write_bytes(content)
    assert refusal.value.code == "checkpoint_damaged"
    assert list(tmp_path.iterdir()) == []
