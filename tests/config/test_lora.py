"""The section `lora`."""

import json
from pathlib import Path

import pytest

from config.run_file import write
from helpers import ROOT, refused
from hydraulis.config.hugging_face.write import to_hugging_face
from hydraulis.config.layered.toml import to_toml
from hydraulis.config.lora import TARGETS, Adapters
from hydraulis.config.run import load, load_with_origins, to_dict
from small_model import small_config


def test_it_sets_the_adapters_of_the_model(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert load(path).model.adapters is None
    model = load(path, ["lora.rank=8", "lora.alpha=16"]).model
    assert model.adapters == Adapters(rank=8, alpha=16.0, targets=TARGETS)
    assert model.adapters.scaling == 2.0
    assert model.base == load(path).model
    # 0 cancels the rank of a file.
    assert load(path, ["lora.rank=8", "lora.alpha=16", "lora.rank=0"]).model.adapters is None


def test_targets_are_in_one_order_and_there_once(tmp_path: Path) -> None:
    targets = 'lora.targets=["up_proj", "q_proj", "up_proj"]'
    config = load(write(tmp_path), ["lora.rank=8", "lora.alpha=16", targets])
    assert config.lora.targets == ("q_proj", "up_proj")


def test_its_text_can_be_read_again(tmp_path: Path) -> None:
    loaded = load_with_origins(write(tmp_path), ["lora.rank=8", "lora.alpha=16"])
    assert loaded.origins["lora.rank"] == "--set"
    assert "adapters" not in to_dict(loaded.config)["model"]
    again = tmp_path / "again.toml"
    again.write_text(to_toml(loaded))
    assert load(again) == loaded.config


@pytest.mark.parametrize(
    ("overrides", "code", "says"),
    [
        (["lora.rank=-1", "lora.alpha=1"], "config_value", "lora.rank = -1 must be a whole number"),
        (["lora.rank=2"], "config_value", "lora.rank = 2 needs lora.alpha"),
        (["lora.alpha=2"], "config_value", "lora.alpha = 2 needs lora.rank"),
        (["lora.rank=2", "lora.alpha=0"], "config_value", "lora.alpha = 0.0 must be"),
        (["lora.dropout=0.1"], "config_value", "lora.dropout = 0.1 must be 0"),
        (["lora.targets=[]"], "config_value", "lora.targets = [] must be non-empty"),
        (['lora.targets=["q_prj"]'], "config_value", "choose one; did you mean 'q_proj'?"),
        (["lora.rnk=2"], "config_unknown_key", "did you mean 'rank'?"),
        (["optimizer.lr=2"], "config_unknown_key", "did you mean 'learning_rate'?"),
        (["model.adapters={rank=1}"], "config_missing_key", "'alpha'"),
        (
            ['model.adapters={rank=1, alpha=1.0, targets=["q_proj"]}'],
            "config_value",
            "model.adapters is set by the section lora",
        ),
    ],
)
def test_wrong_values_are_refused(tmp_path: Path, overrides: list[str], code: str, says: str) -> None:
    with refused(code, says):
        load(write(tmp_path), overrides)


def test_the_example_trains_adapters_of_a_models_folder(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "lora.toml").read_text()
    config = to_hugging_face(small_config(vocab_size=256), 8192)
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = load(ROOT / "examples" / "lora.toml", [f"model.path={tmp_path}"])
    assert loaded.model.adapters == Adapters(rank=8, alpha=16.0, targets=TARGETS)
    assert loaded.checkpoint.weights == str(tmp_path)
    # The commands of its head and its own path name one folder.
    assert text.count("demo-model") == 2
