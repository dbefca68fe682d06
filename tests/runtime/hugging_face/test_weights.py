"""Slices of a model folder, and folders that hold another model."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers import refused
from hydraulis.model.parameters import checkpoint_name
from hydraulis.runtime.hugging_face.weights import INDEX, SINGLE, HuggingFaceWeights
from hydraulis.runtime.state.parameters import ModelParameters
from small_model import FAMILIES, small_config

PARAMETERS = ModelParameters.from_config(small_config(**FAMILIES["every bias"]))


def tensors(parameters: ModelParameters = PARAMETERS) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        checkpoint_name(name): torch.randn(shape, generator=generator)
        for name, shape in parameters.shapes.items()
    }


def write(folder: Path, files: int, values: dict[str, Tensor]) -> None:
    if files == 1:
        safetensors.torch.save_file(values, folder / SINGLE)
        return
    weight_map = {name: f"{number % files}.safetensors" for number, name in enumerate(values)}
    for file in set(weight_map.values()):
        held = {name: value for name, value in values.items() if weight_map[name] == file}
        safetensors.torch.save_file(held, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


@pytest.fixture(scope="module", params=[1, 3])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    write(path, request.param, tensors())
    return path


@given(data=st.data())
def test_any_slice_equals_that_of_the_whole_tensor(folder: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(PARAMETERS.names))
    elements = PARAMETERS.shapes[name].numel()
    start, end = sorted(data.draw(st.lists(st.integers(0, elements), min_size=2, max_size=2, unique=True)))
    whole = PARAMETERS.canonical(tensors()[checkpoint_name(name)], name)
    with HuggingFaceWeights(folder, PARAMETERS) as weights:
        weights.check()
        assert torch.equal(weights.read(name, start, end), whole[start:end])


class Counted:
    """A slice of a file that counts the elements that are asked of it."""

    read = 0

    def __init__(self, of: Any) -> None:
        self.of = of

    def __getitem__(self, place: Any) -> Tensor:
        values: Tensor = self.of[place]
        Counted.read += values.numel()
        return values


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_rank_reads_its_share_and_no_more_than_a_row_at_each_end(
    folder: Path, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sliced = HuggingFaceWeights._slice
    monkeypatch.setattr(HuggingFaceWeights, "_slice", lambda self, name: Counted(sliced(self, name)))
    with HuggingFaceWeights(folder, PARAMETERS) as weights:
        for name, shape in PARAMETERS.shapes.items():
            bounds = [shape.numel() * rank // ranks for rank in range(ranks + 1)]
            line = max(shape) if len(shape) > 1 else 0
            for start, end in pairwise(bounds):
                Counted.read = 0
                weights.read(name, start, end)
                assert end - start <= Counted.read <= end - start + 2 * line


K_PROJ = "model.layers.1.self_attn.k_proj.weight"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda values: values.pop(K_PROJ), f"{K_PROJ} "),
        (lambda values: values.update({"model.layers.3.mlp.x": torch.ones(1)}), "model.layers.3.mlp.x "),
        (lambda values: values.update({K_PROJ: torch.ones(3, 24)}), "[3, 24]"),
        (lambda values: values.update({K_PROJ: values[K_PROJ].to(torch.int8)}), "I8"),
    ],
)
def test_tensors_of_another_model_are_refused(
    tmp_path: Path, change: Callable[[dict[str, Tensor]], Any], says: str
) -> None:
    values = tensors()
    change(values)
    write(tmp_path, 1, values)
    with HuggingFaceWeights(tmp_path, PARAMETERS) as weights, refused("weights_invalid", says):
        weights.check()


def test_tables_of_old_checkpoints_are_no_parameters(tmp_path: Path) -> None:
    write(tmp_path, 1, tensors() | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(3)})
    with HuggingFaceWeights(tmp_path, PARAMETERS) as weights:
        weights.check()


def test_a_tied_head_is_accepted_if_it_equals_the_embedding(tmp_path: Path) -> None:
    parameters = ModelParameters.from_config(small_config(tie_word_embeddings=True))
    values = tensors(parameters)
    head = values["model.embed_tokens.weight"].clone()
    write(tmp_path, 1, values | {"lm_head.weight": head})
    with HuggingFaceWeights(tmp_path, parameters) as weights:
        weights.check()
    head[-1, -1] += 1
    write(tmp_path, 1, values | {"lm_head.weight": head})
    with HuggingFaceWeights(tmp_path, parameters) as weights, refused("weights_invalid", "lm_head.weight"):
        weights.check()


def test_a_tied_head_does_not_stand_for_the_embedding(tmp_path: Path) -> None:
    parameters = ModelParameters.from_config(small_config(tie_word_embeddings=True))
    values = tensors(parameters)
    head = values.pop("model.embed_tokens.weight")
    write(tmp_path, 1, values | {"lm_head.weight": head})
    missing = "model.embed_tokens.weight", "it is missing"
    with HuggingFaceWeights(tmp_path, parameters) as weights, refused("weights_invalid", *missing):
        weights.check()


def test_a_whole_file_counts_before_an_index_as_in_transformers(tmp_path: Path) -> None:
    write(tmp_path, 3, {name: torch.zeros_like(value) for name, value in tensors().items()})
    write(tmp_path, 1, tensors())
    with HuggingFaceWeights(tmp_path, PARAMETERS) as weights:
        weights.check()
        assert weights.read("embed_tokens.weight", 0, 4).abs().sum() > 0


@pytest.mark.parametrize(
    ("name", "ask"),
    [
        ("lm_head.weight", HuggingFaceWeights.check),
        ("model.embed_tokens.weight", lambda weights: weights.read("embed_tokens.weight", 0, 4)),
    ],
)
def test_a_part_that_cannot_be_read_is_refused_by_the_name_of_its_file(
    tmp_path: Path, name: str, ask: Callable[[HuggingFaceWeights], Any]
) -> None:
    parameters = ModelParameters.from_config(small_config(tie_word_embeddings=True))
    rows, width = parameters.shapes["embed_tokens.weight"]
    num_bytes = rows * width * 6 // 8
    values = tensors(parameters) | {name: torch.zeros(num_bytes, dtype=torch.uint8)}
    safetensors.torch.save_file(values, tmp_path / SINGLE)
    # A file that opens: only its numbers are of a kind that torch does not know.
    content = (tmp_path / SINGLE).read_bytes()
    unknown = content.replace(
        b'"dtype":"U8","shape":[%d]' % num_bytes, b'"dtype":"F6_E2M3","shape":[%d,%d]' % (rows, width)
    )
    assert unknown != content
    header = int.from_bytes(content[:8], "little") + len(unknown) - len(content)
    (tmp_path / SINGLE).write_bytes(header.to_bytes(8, "little") + unknown[8:])
    with (
        HuggingFaceWeights(tmp_path, parameters) as weights,
        refused("weights_invalid", SINGLE),
    ):
        ask(weights)


def test_a_rank_does_not_read_a_file_that_was_cut(tmp_path: Path) -> None:
    write(tmp_path, 3, tensors())
    with HuggingFaceWeights(tmp_path, PARAMETERS) as weights:
        for number in range(3):
            path = tmp_path / f"{number}.safetensors"
            path.write_bytes(path.read_bytes()[:-7])
        for name in PARAMETERS.names:
            with refused("weights_invalid", ".safetensors"):
                weights.read(name, 0, 1)


@pytest.mark.parametrize("damage", ["nothing", "cut", "index", "no map", "shard"])
def test_incomplete_files_are_refused_by_name(tmp_path: Path, damage: str) -> None:
    if damage == "cut":
        write(tmp_path, 1, tensors())
        content = (tmp_path / SINGLE).read_bytes()
        (tmp_path / SINGLE).write_bytes(content[:-7])
    elif damage == "index":
        (tmp_path / INDEX).write_text("{")
    elif damage == "no map":
        (tmp_path / INDEX).write_text('{"weight_map": [1]}')
    elif damage == "shard":
        write(tmp_path, 3, tensors())
        (tmp_path / "1.safetensors").unlink()
    file = {"index": INDEX, "no map": INDEX, "shard": "1.safetensors"}.get(damage, SINGLE)
    with (
        refused("weights_invalid", file, "model.hf_config", "model.path"),
        HuggingFaceWeights(tmp_path, PARAMETERS) as weights,
    ):
        weights.check()
