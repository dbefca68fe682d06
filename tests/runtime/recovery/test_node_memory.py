"""The memory of a node, and its limits by control groups as Linux writes them."""

from pathlib import Path

import pytest

from hydraulis.runtime.recovery import node_memory
from hydraulis.runtime.recovery.node_memory import memory_limit, node_bytes

UNLIMITED = 0x7FFFFFFFFFFFF000


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of pretended groups; the process is in none."""
    monkeypatch.setattr(node_memory, "_OWN", tmp_path / "own")
    monkeypatch.setattr(node_memory, "_MOUNT", tmp_path / "mount")
    return tmp_path / "mount"


def be_in(mount: Path, *lines: str, **limits: str) -> None:
    """Be in the groups of these lines, with limits by the paths of their files."""
    mount.with_name("own").write_text("".join(f"{line}\n" for line in lines))
    for path, limit in limits.items():
        file = mount / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{limit}\n")


def test_a_process_without_groups_has_no_limit(mount: Path) -> None:
    assert memory_limit() is None
    be_in(mount, "0::/", "9:name=systemd:/")
    assert memory_limit() is None


def test_the_group_of_a_container_has_the_limit(mount: Path) -> None:
    be_in(mount, "0::/", **{"memory.max": "4096"})
    assert memory_limit() == 4096
    # The path of the host is not there in the container.
    be_in(mount, "0::/kubepods/pod:1/container", **{"memory.max": "8192"})
    assert memory_limit() == 8192
    be_in(mount, "0::/", **{"memory.max": "max"})
    assert memory_limit() is None


def test_the_least_limit_of_the_groups_around_counts(mount: Path) -> None:
    limits = {"slurm/memory.max": "8192", "slurm/job/memory.max": "4096", "slurm/job/step/memory.max": "max"}
    be_in(mount, "0::/slurm/job/step", **limits, **{"slurm/other/memory.max": "1"})
    assert memory_limit() == 4096
    be_in(mount, "0::/slurm/job/step", **{"slurm/memory.max": "2048"})
    assert memory_limit() == 2048


def test_the_first_version_has_another_file_in_a_hierarchy_of_memory(mount: Path) -> None:
    limits = {"memory/memory.limit_in_bytes": str(UNLIMITED), "memory/job/memory.limit_in_bytes": "4096"}
    be_in(mount, "5:cpu,cpuacct:/job", "4:memory:/job", "0::/", **limits)
    assert memory_limit() == 4096
    be_in(mount, "4:memory:/", **limits)
    assert memory_limit() == UNLIMITED


def test_a_container_has_no_more_memory_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_memory, "memory_limit", lambda: None)
    whole = node_bytes()
    assert whole > 1 << 20
    for limit, found in ((1 << 20, 1 << 20), (whole + 1, whole)):
        monkeypatch.setattr(node_memory, "memory_limit", lambda limit=limit: limit)
        assert node_bytes() == found
