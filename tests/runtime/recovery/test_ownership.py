"""Copies continue the run and the launcher that they are of."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from helpers import lacks
from hydraulis.runtime.ranks.liveness.check import Process
from hydraulis.runtime.recovery.memory_folder import Owner
from hydraulis.runtime.recovery.ownership import Ownership, why_refused


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    """Return a process that lives until the test ends it."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def refusal(owner: Owner | None, run: Path) -> str:
    return why_refused([Ownership.of(owner, run)])


def test_the_copies_of_another_run_are_refused(tmp_path: Path) -> None:
    run, copied, link = (tmp_path / name for name in ("run", "copied", "link"))
    run.mkdir()
    link.symlink_to(run)
    owner = Owner(str(run), Process.launcher())
    assert refusal(owner, run) == refusal(owner, link) == ""
    assert lacks(refusal(owner, copied), run) == []
    # One node with the copies of another run is enough.
    found = [Ownership.of(owner, run), Ownership.of(replace(owner, run="/elsewhere"), run)]
    assert lacks(why_refused(found), "/elsewhere") == []


def test_copies_without_an_owner_count_where_another_node_knows_theirs(tmp_path: Path) -> None:
    owner = Owner(str(tmp_path), Process.launcher())
    assert refusal(None, tmp_path) == "no node has any"
    assert why_refused([Ownership.of(None, tmp_path), Ownership.of(owner, tmp_path)]) == ""


def test_the_copies_of_a_living_launcher_are_refused_until_it_ends(
    tmp_path: Path, sleeper: "subprocess.Popen[bytes]"
) -> None:
    owner = Owner(str(tmp_path), replace(Process.own(), pid=sleeper.pid))
    assert lacks(refusal(owner, tmp_path), sleeper.pid) == []
    # A rank of another launcher on the node is of the one that the owner names.
    own = Ownership.of(replace(owner, launcher=Process.launcher()), tmp_path)
    assert why_refused([Ownership.of(owner, tmp_path), own]) == ""
    sleeper.kill()
    sleeper.wait()
    assert refusal(owner, tmp_path) == ""


@pytest.mark.parametrize("change", [{"host": "another"}, {"namespace": "another"}, {"boot": "another"}])
def test_the_copies_of_a_launcher_that_is_not_known_are_taken(
    tmp_path: Path, sleeper: "subprocess.Popen[bytes]", change: dict[str, str]
) -> None:
    launcher = replace(Process.own(), pid=sleeper.pid, **change)
    assert refusal(Owner(str(tmp_path), launcher), tmp_path) == ""
