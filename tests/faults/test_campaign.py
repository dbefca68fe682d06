"""The short form of `make faults`: one run with five losses of ranks in a row."""

from pathlib import Path

from faults.campaign import CASES, RANKS, SHORT, STEPS, run_case, train_undisturbed
from faults.injection import PLACES


def test_a_run_goes_on_from_memory_after_each_loss(tmp_path: Path) -> None:
    for name in ("undisturbed", "disturbed"):
        (tmp_path / name).mkdir()
    row = run_case(tmp_path / "disturbed", SHORT, train_undisturbed(tmp_path / "undisturbed"))
    assert row.wrong == []
    assert row.faults == len(row.next_s) == 5
    # Only the copy that the fourth fault cuts off costs a completed step.
    assert row.lost == 1


def test_the_campaign_has_a_fault_in_every_place() -> None:
    faults = [fault for case in CASES.values() for start in case.chain for fault in start]
    assert {fault.place for fault in faults} == set(PLACES)
    assert all(fault.rank < RANKS and fault.step <= STEPS for fault in faults)
