"""The choice of a state among the copies that ranks see."""

from itertools import chain

from hydraulis.runtime.recovery.memory_folder import CopyName
from hydraulis.runtime.recovery.survey import choose_sources, newest_whole


def copies(steps: list[int | None], shards: range, holder: int | None = None) -> list[CopyName]:
    return [
        CopyName(step, shard, 4, shard if holder is None else holder) for step in steps for shard in shards
    ]


def test_the_newest_step_with_every_shard_is_taken() -> None:
    everywhere = copies([None, 5], range(4))
    assert newest_whole([everywhere, copies([6], range(3))]) == (5, "")
    assert newest_whole([everywhere, copies([6], range(3)), copies([6], range(3, 4), holder=1)]) == (6, "")


def test_the_missing_shards_are_named() -> None:
    assert newest_whole([[], []]) == (None, "no node has any")
    step, why = newest_whole([copies([None, 5], range(1, 4))])
    assert step is None
    assert why.startswith("shard 0 of 4 ")
    _, why = newest_whole([copies([5], range(4)), copies([None], range(2))])
    assert why.startswith("shard 2, 3 of 4 ")


def test_ranks_that_see_the_same_files_share_the_reading() -> None:
    own = copies([None, 5, 6], range(4))
    by_rank = [own, own, copies([None, 6], range(4), holder=0)]
    sources = choose_sources(by_rank, 6)
    chosen = list(chain.from_iterable(sources.values()))
    assert len(chosen) == 8
    assert {(copy.step, copy.shard) for copy in chosen} == {
        (step, shard) for step in (None, 6) for shard in range(4)
    }
    assert all(copy in by_rank[rank] for rank, read in sources.items() for copy in read)
    assert {rank: len(read) for rank, read in sources.items()} == {0: 4, 1: 2, 2: 2}
