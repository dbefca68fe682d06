"""A manifest comes back as it was written, and whatever is no whole one is refused by name."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers import at_least, refused
from hydraulis.errors import HydraulisError
from hydraulis.files import with_digest
from hydraulis.runtime.checkpoint.manifest import DataCursor, Manifest, ParameterRecord, ShardRecord, torn
from small_model import FAMILIES, small_config

MANIFEST = Manifest(
    version="0.1.0",
    moments=("exp_avg",),
    step=20,
    world_size=2,
    dtype="float32",
    frozen_dtype="bfloat16",
    model=small_config(**FAMILIES["qwen3"]),
    data=DataCursor(
        fingerprint="ab",
        seed=3,
        tokens_per_batch=120,
        sequences_per_batch=None,
        epoch_end="continue",
        max_tokens=64,
        epochs=2,
        next_batch="cd",
    ),
    shards=(
        ShardRecord(file="a.safetensors", bytes=10, digest="12"),
        ShardRecord(file="b.safetensors", bytes=12, digest="34"),
    ),
    parameters=(
        ParameterRecord(name="w", shape=(3, 4), trained=True, intervals=((0, 0, 7), (1, 7, 12))),
        ParameterRecord(name="v", shape=(5,), trained=False, intervals=((1, 0, 5),)),
    ),
)


def test_a_manifest_is_read_back_equal() -> None:
    assert Manifest.from_json(MANIFEST.to_json(), "here") == MANIFEST


def intervals(*of_w: tuple[int, int, int]) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["parameters"][0].update(intervals=of_w)


def file(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["shards"][0].update(file=name)


def without(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda document: document.pop(name)


def changed(change: Callable[[dict[str, Any]], object]) -> str:
    """Return the manifest with a change that its digest covers."""
    document = json.loads(MANIFEST.to_json())
    del document["digest"]
    change(document)
    return with_digest(document)


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (lambda document: document.update(format="hydraulis.checkpoint/1"), "run_unreadable", "/1'"),
        (lambda document: document.pop("format"), "run_unreadable", "None"),
        (lambda document: document.pop("step"), "checkpoint_damaged", "'step'"),
        (lambda document: document.update(step="20"), "checkpoint_damaged", "manifest.step = '20'"),
        (lambda document: document.update(more=1), "checkpoint_damaged", "'more'"),
        (lambda document: document["model"].update(hidden_size=-1), "checkpoint_damaged", "hidden_size"),
        (intervals((0, 0, 7)), "checkpoint_damaged", "intervals of w do not cover its 12 elements"),
        (intervals((0, 0, 7), (1, 6, 12)), "checkpoint_damaged", "intervals of w"),
        (intervals((0, 0, 7), (1, 8, 12)), "checkpoint_damaged", "intervals of w"),
        (intervals((0, 1, 12)), "checkpoint_damaged", "intervals of w"),
        (intervals((2, 0, 12)), "checkpoint_damaged", "w is in a shard beyond the 2"),
        (intervals((0, 0, 7), (1, 7, 7), (1, 7, 12)), "checkpoint_damaged", "intervals of w"),
        (intervals((0, 0, 14), (1, 14, 12)), "checkpoint_damaged", "intervals of w"),
        (lambda document: document.update(step=0), "checkpoint_damaged", "step = 0 must be at least 1"),
        (lambda document: document.update(world_size=7), "checkpoint_damaged", "world_size = 7"),
        (lambda document: document["parameters"][1].update(name="w"), "checkpoint_damaged", "occurs twice"),
        (file("../../elsewhere/a.safetensors"), "checkpoint_damaged", "'../../elsewhere/a.safetensors' is"),
        (file("/elsewhere/a.safetensors"), "checkpoint_damaged", "is no plain name of a file"),
        (file("\0"), "checkpoint_damaged", "is no plain name of a file"),
        (file(".."), "checkpoint_damaged", "is no plain name of a file"),
        (file(""), "checkpoint_damaged", "is no plain name of a file"),
        (file("b.safetensors"), "checkpoint_damaged", "two shards have one file"),
    ],
)
def test_an_incomplete_manifest_is_refused(
    change: Callable[[dict[str, Any]], None], code: str, says: str
) -> None:
    with refused(code, "here", says):
        Manifest.from_json(changed(change), "here")


@pytest.mark.parametrize("length", [0, 1, 100, 700])
def test_a_manifest_that_was_cut_off_is_torn(length: int) -> None:
    with refused("checkpoint_damaged", "here"):
        Manifest.from_json(MANIFEST.to_json()[:length], "here")


def test_the_refusal_names_the_files_to_remove_and_the_remaining_ones(tmp_path: Path) -> None:
    def says(path: Path) -> str:
        return str(torn(str(path), "cut")).partition("; ")[2]

    cut = tmp_path / "a run" / "step-00000040"
    cut.mkdir(parents=True)
    (cut / "manifest.json").touch()
    for path in (cut, cut / "manifest.json", cut / "state-00001-of-00002.safetensors"):
        assert says(path).count(f"rm -r '{cut}'") == 1
        assert "step-" not in says(path).partition(f"rm -r '{cut}'")[2]
    assert f"(rm -r {tmp_path}/step.v2)" in says(tmp_path / "step.v2")
    for step in ("00000020", "100000000", "99999999", "00000050"):
        (cut.parent / f"step-{step}").mkdir()
    # One lacks its manifest.
    for step in ("00000020", "99999999", "100000000"):
        (cut.parent / f"step-{step}" / "manifest.json").touch()
        newest = cut.parent / f"step-{step}"
        assert says(cut / "manifest.json").partition(f"rm -r '{cut}'")[2].count(str(newest)) == 1


def test_a_list_is_no_manifest() -> None:
    with pytest.raises(HydraulisError) as refusal:
        Manifest.from_json("[]", "here")
    assert refusal.value.code == "checkpoint_damaged"


def test_every_field_is_needed() -> None:
    for field in at_least(8, dataclasses.fields(Manifest)):
        with refused("checkpoint_damaged", field.name):
            Manifest.from_json(changed(without(field.name)), "here")


def test_a_changed_manifest_is_refused() -> None:
    text = MANIFEST.to_json()
    # Written in another form it has the same content.
    assert Manifest.from_json(json.dumps(json.loads(text), indent=2), "here") == MANIFEST
    for before, after in (('"seed": 3', '"seed": 4'), ("[0, 0, 7]", "[1, 0, 7]"), ('"12"', '"13"')):
        assert text.count(before) == 1
        with refused("checkpoint_damaged", "here", "digest"):
            Manifest.from_json(text.replace(before, after), "here")


def test_an_endlessly_nested_manifest_is_torn() -> None:
    with refused("checkpoint_damaged", "here", "JSON"):
        Manifest.from_json('{"a":' * 100_000, "here")
