"""The short form of `make faults`: two runs with losses of ranks and of nodes in a row."""

from pathlib import Path

import pytest

from faults.campaign import CASES, RANKS, SHORT, SHORT_ON_NODES, STEPS, Case, Row, run_case, train_undisturbed
from faults.injection import PLACES


def row_of(folder: Path, case: Case) -> Row:
    for name in ("undisturbed", "disturbed"):
        (folder / name).mkdir()
    return run_case(
        folder / "disturbed", case, train_undisturbed(folder / "undisturbed", case.ranks_per_node)
    )


@pytest.mark.devices
def test_a_run_goes_on_from_memory_after_each_loss(tmp_path: Path) -> None:
    row = row_of(tmp_path, SHORT)
    assert row.wrong == []
    assert row.faults == len(row.next_s) == 6
    # Only the copy that the fourth fault cuts off costs a completed step.
    assert row.lost == 1


@pytest.mark.devices
def test_a_run_goes_on_from_twins_and_without_them_from_the_newest_checkpoint(tmp_path: Path) -> None:
    row = row_of(tmp_path, SHORT_ON_NODES)
    assert row.wrong == []
    # The loss of a shard with its twin costs the step since the checkpoint, and a lost node none.
    assert row.lost == 1


def test_the_campaign_has_a_fault_in_every_place() -> None:
    faults = [fault for case in CASES.values() for start in case.chain for fault in start]
    assert {fault.place for fault in faults} == set(PLACES)
    assert all(fault.rank < RANKS and fault.step <= STEPS for fault in faults)
