"""The check of the copies in memory: their room, their host memory, and the messages for twins."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers import lacks, refused, unsearched
from hydraulis import Cluster
from hydraulis.config.run import RunConfig
from hydraulis.planner.profile_document import with_host_memory
from hydraulis.preflight import copies
from hydraulis.preflight.copies import check_copies
from hydraulis.runtime.records.run_directory import MEMORY
from hydraulis.runtime.recovery.footprint import Footprint
from hydraulis.runtime.recovery.host_room import left_to_rank
from hydraulis.runtime.recovery.memory_folder import CopyName, MemoryFolder
from hydraulis.runtime.state.parameters import ElementCount, ModelParameters
from preflight.checked_run import read
from profiles import made_up_profile


@pytest.fixture
def config(made: Path, tmp_path: Path) -> RunConfig:
    return read(made, f"checkpoint.memory_folder={tmp_path}", "train.dtype=float32")


def test_two_copies_of_parameters_and_moments_are_on_one_node(config: RunConfig) -> None:
    elements = ModelParameters.from_config(config.model).elements.trained
    found = Footprint.of(config, Cluster(4, 4))
    assert (found.files, found.first, found.sent) == (2 * 12 * elements, 12 * elements, 0)


def test_a_folder_of_copies_that_may_not_be_searched_for_is_refused(
    config: RunConfig, tmp_path: Path
) -> None:
    with unsearched(tmp_path.parent), refused("file_unreadable", tmp_path, "Permission denied"):
        check_copies(config, Cluster(4, 4), None)


def test_pinned_memory_is_counted_as_torch_rounds_it_up(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for elements, block in ((1 << 20, 1 << 20), ((1 << 20) + 1, 1 << 21)):
        monkeypatch.setattr(ModelParameters, "elements", ElementCount(4 * elements, 0))
        # A rank has a block for the parameters and one for each of two moments, for a copy and a snapshot.
        pinned = 4 * 2 * 3 * 4 * block
        assert Footprint.of(config, Cluster(4, 4)).buffers == pinned
        # With twins each rank receives as much as it sends, into memory that is not pinned.
        of_node = Footprint.of(config, Cluster(4, 2))
        assert of_node.buffers == pinned // 2 + of_node.sent


def test_twins_take_the_memory_again_and_are_sent_once_a_step(config: RunConfig) -> None:
    one, two = (Footprint.of(config, Cluster(4, of_node)) for of_node in (4, 2))
    # Each of two nodes has half of the state, and the twins of the other half.
    assert (two.files, two.first) == (one.files, one.first)
    assert two.sent == one.first // 2


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
        Footprint, "of", lambda *_: Footprint(files=96 * mib, first=48 * mib, buffers=72 * mib, sent=12 * mib)
    )
    _, text = check_copies(config, Cluster(4, 2))
    assert text.startswith("96 of ")
    assert "up to 72 MiB of host memory for a copy and a checkpoint in progress" in text
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


def test_beside_copies_that_may_continue_a_run_the_start_decides(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, base = tmp_path / "run", Path(config.checkpoint.memory_folder)
    run.mkdir()
    # The parent of this process is the launcher, so the start is an earlier one.
    folder = MemoryFolder(base, "0" * 32)
    folder.create(run)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    with refused("file_unwritable", "checkpoint.memory_folder"):
        check_copies(config, Cluster(4, 4))
    (run / MEMORY).write_text(f"{folder.start}\n")
    status, text = check_copies(config, Cluster(4, 4))
    assert status == "later"
    assert str(run) in text
    assert "''" not in text


def test_the_start_decides_if_the_room_of_copies_that_continue_no_run_suffices(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Footprint.of(config, Cluster(4, 4))
    # The run's folder is gone.
    folder = MemoryFolder(Path(config.checkpoint.memory_folder), "0" * 32)
    folder.create(tmp_path / "gone")
    folder.file(CopyName(3, 0, 1, 0)).write_bytes(bytes(found.files // 4))
    needed = found.files - found.files // 4
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=needed - 1))
    with refused("file_unwritable", "checkpoint.memory_folder"):
        check_copies(config, Cluster(4, 4))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=needed))
    status, text = check_copies(config, Cluster(4, 4))
    assert status == "later"
    assert lacks(text, folder.base) == []
    # The start then accepts the room.
    start = MemoryFolder(folder.base, "1" * 32)
    start.create(tmp_path / "run")
    start.require_room(found.first, found.files)


def test_a_missing_folder_is_refused(made: Path, tmp_path: Path) -> None:
    config = read(made, f"checkpoint.memory_folder={tmp_path}/absent")
    with refused("file_unwritable", "checkpoint.memory_folder", "absent"):
        check_copies(config, Cluster(4, 4))
