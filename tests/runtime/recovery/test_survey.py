"""The choice of a state among the copies that ranks see."""

from itertools import chain

from hydraulis.runtime.recovery.memory_folder import CopyName
from hydraulis.runtime.recovery.survey import choose_sources, choose_verifiers, newest_whole


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


def test_each_rank_may_read_what_it_sees_and_one_of_a_node_verifies_it() -> None:
    own = copies([None, 5, 6], range(4))
    by_rank = [own, own, copies([None, 6], range(2), holder=3), []]
    sources = choose_sources(by_rank, 6)
    assert {rank: len(copies) for rank, copies in sources.items()} == {0: 8, 1: 8, 2: 4}
    assert sources[0] == sources[1]
    for rank, chosen in sources.items():
        assert set(chosen) <= set(by_rank[rank])
        assert {copy.step for copy in chosen} == {None, 6}
    verified = list(chain.from_iterable(choose_verifiers(sources).values()))
    assert sorted(map(str, verified)) == sorted(map(str, {*sources[0], *sources[2]}))
    assert {rank: len(copies) for rank, copies in choose_verifiers(sources).items()} == {0: 4, 1: 4, 2: 4}


def test_of_two_copies_on_a_node_all_its_ranks_choose_the_same() -> None:
    seen = [*copies([None, 6], range(4)), *copies([6], range(4), holder=0)]
    first, second = choose_sources([seen, seen[::-1]], 6).values()
    assert first == second
    assert len(first) == 8
