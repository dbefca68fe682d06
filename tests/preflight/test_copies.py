"""The check of the copies in memory: their room, their host memory, and the messages for twins."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers import refused
from hydraulis import Cluster
from hydraulis.config.run import RunConfig
from hydraulis.planner.profile_document import with_host_memory
from hydraulis.preflight import copies
from hydraulis.preflight.copies import check_copies
from hydraulis.runtime.recovery.footprint import Footprint
from hydraulis.runtime.recovery.host_room import left_to_rank
from hydraulis.runtime.state.parameters import ModelParameters
from preflight.checked_run import read
from profiles import made_up_profile


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


def test_the_figures_of_twins_are_stated_in_mib(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    mib = 1 << 20
    monkeypatch.setattr(
        Footprint, "of", lambda *_: Footprint(files=96 * mib, buffers=24 * mib, sent=12 * mib)
    )
    _, text = check_copies(config, Cluster(4, 2))
    assert text.startswith("96 of ")
    assert "24 MiB of host memory while a copy is made" in text
    assert "12 MiB to the next node in each step, for a twin of each shard there" in text


def test_memory_that_copies_take_from_layers_that_offload_is_stated(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, mib = Cluster(4, 2), 1 << 20
    monkeypatch.setattr(copies, "node_bytes", lambda: 1000 * mib)
    left = left_to_rank(config, cluster, 1000 * mib)
    profile = made_up_profile({"<1>": 64})
    for stated, is_said in ((left, False), (left + mib, True)):
        text = check_copies(config, cluster, with_host_memory(profile, stated))[1]
        assert (f"layers that offload have {left >> 20:,} MiB" in text) == is_said
    assert "offload" not in check_copies(config, cluster, profile)[1]


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
