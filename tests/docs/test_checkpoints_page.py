"""Every example of docs/checkpoints.md, run; and its table has every field."""

import dataclasses
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import ROOT, at_least
from hydraulis.config.layered.table import from_table
from hydraulis.config.output import CheckpointConfig
from hydraulis.runtime.checkpoint.folder import CheckpointFolder
from hydraulis.runtime.checkpoint.manifest import FORMAT, MANIFEST, Manifest
from hydraulis.runtime.checkpoint.reader import CheckpointReader, read_manifest
from ranks import run_ranks
from runtime.hugging_face.hugging_face_workers import to_checkpoints
from test_end_to_end import make_model

TEXT = (ROOT / "docs/checkpoints.md").read_text(encoding="utf-8")
BLOCKS = at_least(5, re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))


def of_kind(kind: str) -> list[str]:
    return at_least(1, [body for found, body in BLOCKS if found == kind])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Leave the checkpoint that the page names."""
    folder = tmp_path_factory.mktemp("page")
    make_model(folder / "base")
    run_ranks(2, to_checkpoints, [folder / "base"])
    (folder / "runs").mkdir()
    checkpoints = CheckpointFolder.of_run((folder / "base" / "run").rename(folder / "runs" / "demo"))
    manifest = dataclasses.replace(read_manifest(checkpoints.step(1)), step=500)
    moved = checkpoints.step(1).rename(checkpoints.step(500))
    (moved / MANIFEST).write_text(manifest.to_json())
    return folder


def test_the_configurations_of_the_page_are_read() -> None:
    sections = [tomllib.loads(body) for body in of_kind("toml")]
    assert [list(section) for section in sections] == [["checkpoint"], ["model"]]
    config = from_table(CheckpointConfig, sections[0]["checkpoint"], "checkpoint")
    assert config == CheckpointConfig(every_steps=500, keep=CheckpointConfig().keep, keep_best=True)


def test_the_reader_of_the_page_gives_the_parameters_of_the_package(run: Path) -> None:
    (body,) = of_kind("python")
    names: dict[str, Any] = {}
    exec(compile(body, "docs/checkpoints.md", "exec"), names)
    checkpoint = CheckpointFolder.of_run(run / "runs" / "demo").step(500)
    manifest = read_manifest(checkpoint)
    with CheckpointReader(checkpoint, manifest) as reader:
        for record in at_least(20, manifest.parameters):
            mine = reader.read(record.name, 0, record.intervals[-1][2]).numpy()
            assert np.array_equal(names["read"](checkpoint, record.name), mine), record.name


def test_the_table_of_the_page_has_every_field() -> None:
    assert f"`{FORMAT}`" in TEXT
    for field in at_least(8, dataclasses.fields(Manifest)):
        assert re.search(rf"^\|.*`{field.name}`.*\|.*\|$", TEXT, re.MULTILINE), field.name
