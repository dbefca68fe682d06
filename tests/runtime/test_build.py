"""Every rank raises the error of a rank that cannot read its parameters."""

from ranks import run_ranks
from runtime.build_workers import read_torn_values


def test_values_that_one_rank_cannot_read_are_refused_on_all() -> None:
    assert run_ranks(2, read_torn_values) == ["checkpoint_damaged"] * 2
