"""Layers that offload and copies of the state share a node's host memory."""

from pathlib import Path

import pytest

from hydraulis import Cluster
from hydraulis.runtime.recovery import host_room
from hydraulis.runtime.recovery.footprint import Footprint
from hydraulis.runtime.recovery.host_room import is_in_memory, left_to_rank
from ranks import run_ranks
from runtime.recovery.host_room_workers import host_memory_of_plans, with_copies

CLUSTER = Cluster(4, 2)
NODE = 10 << 20


def test_copies_in_memory_leave_less_to_layers_that_offload(monkeypatch: pytest.MonkeyPatch) -> None:
    config = with_copies("/dev/shm")
    found = Footprint.of(config, CLUSTER)
    assert found.files > 0
    for in_memory, taken in ((True, found.files + found.buffers), (False, found.buffers)):
        monkeypatch.setattr(host_room, "is_in_memory", lambda _, found=in_memory: found)
        # Two ranks of a node have four fifths of its memory together, less the copies.
        assert left_to_rank(config, CLUSTER, NODE) == (NODE * 4 // 5 - taken) // 2
    assert left_to_rank(config, CLUSTER, 1) == 0


def test_a_folder_is_in_memory_or_on_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in memory" / "deeper").mkdir(parents=True)
    mounts = tmp_path / "mounts"
    in_memory = str(tmp_path / "in memory").replace(" ", "\\040")
    mounts.write_text(f"disk / ext4 rw 0 0\ntmpfs {in_memory} tmpfs rw 0 0\n")
    monkeypatch.setattr(host_room, "_MOUNTS", mounts)
    assert [is_in_memory(tmp_path / name) for name in ("in memory", "in memory/deeper", "other")] == [
        True,
        True,
        False,
    ]


def test_plans_count_with_the_least_memory_that_is_left(tmp_path: Path) -> None:
    stated = NODE // 4
    for of_rank in ([NODE, NODE // 2], [NODE // 2, NODE]):
        for left, notes in run_ranks(2, host_memory_of_plans, str(tmp_path), of_rank, stated):
            assert left == left_to_rank(with_copies(str(tmp_path)), Cluster(2, 2), NODE // 2) < stated
            assert len(notes) == 1
            assert "checkpoint.memory_folder" in notes[0]
    for folder, of_rank in (("", [1, 1]), (str(tmp_path), [1 << 40, 1 << 40])):
        assert run_ranks(2, host_memory_of_plans, folder, of_rank, stated) == [(stated, [])] * 2
