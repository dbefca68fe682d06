"""Ranks that differ are refused, and the first difference is named with its values and ranks."""

from helpers import lacks
from hydraulis.runtime.agreement.comparison import describe_difference, digest_of
from ranks import run_ranks
from runtime.agreement.comparison_workers import check_and_refuse


def test_every_rank_raises_the_first_difference() -> None:
    results = run_ranks(3, check_and_refuse)
    assert results == [results[0]] * 3
    same, differs, absent = results[0]
    assert same == ("", "")
    assert differs[0] == absent[0] == "ranks_differ"
    assert lacks(differs[1], "train.seed", "7 on rank 1", "0 on ranks 0, 2") == []
    assert lacks(absent[1], "the bytes of x", "on rank 2", "5 on ranks 0, 1") == []


def test_many_ranks_are_counted() -> None:
    by_rank = {rank: {"a": "x" if rank == 6 else "y"} for rank in range(8)}
    assert describe_difference(by_rank) == "a is 'x' on rank 6, and 'y' on ranks 0, 1, 2, 3 and 3 others"


def test_a_digest_depends_on_every_bound_of_its_parts() -> None:
    digests = [digest_of(*parts) for parts in ((), (b"",), (b"ab",), (b"a", b"b"), (b"b", b"a"))]
    assert len(set(digests)) == len(digests)
    assert all(0 <= digest < 2**63 for digest in digests)
