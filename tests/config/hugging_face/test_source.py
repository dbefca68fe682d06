import json
import re
from pathlib import Path

import pytest

from config.run_file import MINIMAL, write
from helpers import refused
from hydraulis.config.hugging_face.read import from_hugging_face
from hydraulis.config.model import RopeScaling
from hydraulis.config.run import load, load_with_origins
from hydraulis.errors import InvalidInputError


def write_model(folder: Path, **changes: object) -> Path:
    path = folder / "config.json"
    shape = {
        "model_type": "qwen3",
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64},
    }
    path.write_text(json.dumps(shape | changes), encoding="utf-8")
    return path


def test_a_model_may_come_from_a_config_json_and_further_keys_change_it(tmp_path: Path) -> None:
    path = write_model(tmp_path)
    file = write(tmp_path, re.sub(r"\[model\](\n.+)+", f"[model]\nhf_config = '{path}'", MINIMAL))
    assert load(file).model == from_hugging_face(path)
    scaling = 'model.rope_scaling={rope_type="linear", factor=3}'
    config = load(file, ["model.num_hidden_layers=1", scaling]).model
    assert (config.num_hidden_layers, config.qk_norm) == (1, True)
    assert config.rope_scaling == RopeScaling(rope_type="linear", factor=3.0)


def test_a_config_json_of_another_type_or_of_an_unsupported_model_is_refused(tmp_path: Path) -> None:
    with refused("config_value", "model.hf_config = 3"):
        load(write(tmp_path, MINIMAL.replace("[model]", "[model]\nhf_config = 3")))
    path = write_model(tmp_path, model_type="gemma")
    with refused("model_unsupported"):
        load(write(tmp_path), [f"model.hf_config='{path}'"])


def test_a_name_on_the_hub_gets_the_command_that_downloads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path, re.sub(r"\[model\](\n.+)+", "[model]\npath = 'Qwen/Qwen3-0.6B'", MINIMAL))

    def refused(*overrides: str) -> str:
        with pytest.raises(InvalidInputError) as refusal:
            load(file, overrides)
        assert refusal.value.code == "file_unreadable"
        return str(refusal.value)

    said = refused()
    assert "model.path = 'Qwen/Qwen3-0.6B'" in said
    assert f"{tmp_path}/Qwen/" in said
    assert "hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B" in said
    for elsewhere in ("base", "./Qwen/Qwen3-0.6B", f"{tmp_path}/base", "a/b/c"):
        assert "hf download" not in refused(f"model.path={elsewhere}")
    (tmp_path / "Qwen/Qwen3-0.6B").mkdir(parents=True)
    assert "Qwen3-0.6B/config.json'" in refused()
    write_model(tmp_path / "Qwen/Qwen3-0.6B")
    assert load(file).checkpoint.weights == "Qwen/Qwen3-0.6B"


HF_CONFIG = {
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
}
WEIGHTS = """
[checkpoint]
weights = "before"
"""


def without_shape(folder: Path) -> Path:
    (folder / "config.json").write_text(json.dumps(HF_CONFIG))
    shape = re.compile(r"\[model\]\n(\w+ = \d+\n)+")
    return write(folder, shape.sub(f'[model]\npath = "{folder}"\n', MINIMAL))


def test_a_model_folder_gives_the_shape_and_the_parameters(tmp_path: Path) -> None:
    config = load(without_shape(tmp_path))
    assert config.model == from_hugging_face(HF_CONFIG)
    assert config.checkpoint.weights == str(tmp_path)


@pytest.mark.parametrize(
    ("override", "code", "part"),
    [
        ("model.path=[]", "config_value", "model.path = []"),
        ("model.path=nowhere", "file_unreadable", "nowhere/config.json"),
    ],
)
def test_a_model_folder_is_named_once(tmp_path: Path, override: str, code: str, part: str) -> None:
    with refused(code, part):
        load(without_shape(tmp_path), [override])


def test_a_later_layer_may_name_other_parameters(tmp_path: Path) -> None:
    path = without_shape(tmp_path)
    loaded = load_with_origins(path, ["checkpoint.weights=there"])
    assert loaded.config.model == from_hugging_face(HF_CONFIG)
    assert loaded.config.checkpoint.weights == "there"
    assert loaded.origins["checkpoint.weights"] == "--set"
    assert loaded.origins["model.hidden_size"] == str(tmp_path / "config.json")
    assert load(path, ["checkpoint.weights=there", f"model.path={tmp_path}"]).checkpoint.weights == str(
        tmp_path
    )
    # `hf_config` sets the shape alone: the parameters are random.
    assert not load(path, [f"model.hf_config={tmp_path}/config.json"]).checkpoint.weights

    text = path.read_text()
    path.write_text(
        text.replace("path =", "hf_config =").replace(f'"{tmp_path}"', f'"{tmp_path}/config.json"') + WEIGHTS
    )
    assert load(path).checkpoint.weights == "before"
    assert load(path, [f"model.path={tmp_path}"]).checkpoint.weights == str(tmp_path)

    path.write_text(text + WEIGHTS)
    with refused("config_value", "weights = 'before'"):
        load(path)


def test_a_model_folder_and_a_config_json_in_one_file_are_refused(tmp_path: Path) -> None:
    path = without_shape(tmp_path)
    path.write_text(path.read_text().replace("[model]", "[model]\nhf_config = 'config.json'"))
    with refused("config_value", "hf_config = 'config.json' both describe"):
        load(path)
    # An override removes the contradiction.
    assert load(path, [f"model.path={tmp_path}"]).checkpoint.weights == str(tmp_path)


def test_values_of_a_config_json_state_their_origin(tmp_path: Path) -> None:
    path = without_shape(tmp_path)
    origins = load_with_origins(path, ["model.vocab_size=400"]).origins
    assert origins["model.hidden_size"] == str(tmp_path / "config.json")
    assert origins["model.vocab_size"] == "--set"
    # A default has no file as its origin.
    assert origins["model.attention_output_bias"] == f"left out of {tmp_path / 'config.json'}"
    assert origins["checkpoint.weights"] == f"model.path of {path}"
    by_option = load_with_origins(path, [f"model.path={tmp_path}"]).origins
    assert by_option["checkpoint.weights"] == "model.path of --set"
