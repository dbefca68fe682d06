"""The check of the copies in memory: their room, their host memory, and the messages for twins."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers import refused
from hydraulis import Cluster
from hydraulis.config.run import RunConfig
from hydraulis.preflight.copies import check_copies
from hydraulis.runtime.recovery.footprint import Footprint
from hydraulis.runtime.state.parameters import ModelParameters
from preflight.checked_run import read


@pytest.fixture
def config(made: Path, tmp_path: Path) -> RunConfig:
    return read(made, f"checkpoint.memory_folder={tmp_path}", "train.dtype=float32")


def test_two_copies_of_parameters_and_moments_are_on_one_node(config: RunConfig) -> None:
    elements = ModelParameters.from_config(config.model).num_elements(trained=True)
    assert Footprint.of(config, Cluster(4, 4)) == Footprint(2 * 12 * elements, 12 * elements, 0)


def test_twins_take_the_memory_again_and_are_sent_once_a_step(config: RunConfig) -> None:
    one, two = (Footprint.of(config, Cluster(4, of_node)) for of_node in (4, 2))
    # Each of two nodes has half of the state, and the twins of the other half.
    assert (two.files, two.buffers) == (one.files, one.buffers)
    assert two.sent == one.buffers // 2


def test_the_copies_are_stated(config: RunConfig, made: Path) -> None:
    status, text = check_copies(config, Cluster(4, 2))
    assert status == "ok"
    assert f"in {config.checkpoint.memory_folder} on each node" in text
    assert "to the next node in each step" in text
    assert "no twins" in check_copies(config, Cluster(4, 4))[1]
    assert "checkpoint.memory_folder" in check_copies(read(made), Cluster(4, 4))[1]


def test_a_folder_without_room_is_refused(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = Footprint.of(config, Cluster(4, 4)).files
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=needed - 1))
    with refused("file_unwritable", "checkpoint.memory_folder"):
        check_copies(config, Cluster(4, 4))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=needed))
    assert check_copies(config, Cluster(4, 4))[0] == "ok"


def test_a_missing_folder_is_refused(made: Path, tmp_path: Path) -> None:
    config = read(made, f"checkpoint.memory_folder={tmp_path}/absent")
    with refused("file_unwritable", "checkpoint.memory_folder", "absent"):
        check_copies(config, Cluster(4, 4))
