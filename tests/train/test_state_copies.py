"""Starts with copies of the state: a restart needs no more room than the first start."""

from pathlib import Path

import pytest

from ranks import run_ranks
from runtime.one_process import OPTIMIZER, batches, model_config
from runtime.recovery.keeper_workers import Setting
from train.state_copies_workers import Started, train_with_copies

SETTING = Setting(model_config(), OPTIMIZER, ("1x<tp2>",))
STEPS = [("1x<tp2>", batch) for batch in batches(3, SETTING.config.vocab_size)]
# Copies that a folder of 1,000 GiB has room for, if one takes 400 GiB.
ROOM = 2.5


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """Return the folders of a run and of the copies."""
    run, base = tmp_path / "run", tmp_path / "memory"
    run.mkdir()
    base.mkdir()
    return run, base


def start(places: tuple[Path, Path], num_steps: int, room: float) -> Started:
    first, second = run_ranks(2, train_with_copies, *places, SETTING, STEPS[:num_steps], room)
    assert (first.code, first.step) == (second.code, second.step)
    found: Started = first
    return found


def test_a_restart_has_the_room_of_the_first_start(places: tuple[Path, Path]) -> None:
    first = start(places, 3, ROOM)
    assert (first.step, first.at_start) == (0, [])
    assert first.after == [[{1, None}], [{1, 2, None}], [{2, 3, None}]]
    # The chosen step's files stay until the new start has a whole copy, however often it is lost before.
    for _ in range(2):
        lost = start(places, 0, ROOM)
        assert (lost.code, lost.step, lost.at_start) == ("", 3, [{3, None}])
    again = start(places, 2, ROOM)
    assert (again.code, again.step, again.at_start) == ("", 3, [{3, None}])
    begun, whole = again.after
    assert len(begun) == 2
    assert {3, None} in begun
    assert {4, None} in begun
    assert whole == [{4, 5, None}]


def test_a_start_with_too_little_room_is_refused(places: tuple[Path, Path]) -> None:
    refused = start(places, 0, 1.9)
    assert refused.code == "file_unwritable"
    assert "set it to '' for no copies" in refused.message
    start(places, 3, ROOM)
    refused = start(places, 0, 1.9)
    assert refused.code == "file_unwritable"
    assert "checkpoint.memory_folder" in refused.message
    assert "''" not in refused.message
    # The copies that continue the run are still there.
    assert refused.at_start == [{3, None}]
    assert start(places, 0, ROOM).step == 3


def test_copies_that_continue_nothing_leave_their_room(places: tuple[Path, Path]) -> None:
    start(places, 3, ROOM)
    (folder,) = places[1].iterdir()
    for path in folder.glob("*.shard-00001-*"):
        path.unlink()
    # A shard of two steps is left, one copy of two. The new start needs two.
    new = start(places, 2, 2.1)
    assert (new.code, new.step, new.at_start) == ("", 0, [])
    assert new.after == [[{1, None}], [{1, 2, None}]]
