import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydraulis.parallel.context.head_split import HeadShare, share_heads


@pytest.mark.parametrize(
    ("num_heads", "cp", "expected"),
    [
        ((8, 4), 2, [(0, 4, (0, 1)), (4, 8, (2, 3))]),
        # More ranks than key/value heads: each goes to two.
        ((8, 2), 4, [(0, 2, (0,)), (2, 4, (0,)), (4, 6, (1,)), (6, 8, (1,))]),
        # Groups are cut: a key/value head for each query head.
        ((8, 4), 3, [(0, 2, (0,)), (2, 5, (1, 1, 2)), (5, 8, (2, 3, 3))]),
    ],
)
def test_examples(
    num_heads: tuple[int, int], cp: int, expected: list[tuple[int, int, tuple[int, ...]]]
) -> None:
    shares = share_heads(*num_heads, cp)
    assert [(share.queries.start, share.queries.stop, share.keys) for share in shares] == expected


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 12))
def test_every_query_head_meets_its_own_key_head(num_keys: int, group: int, cp: int) -> None:
    num_queries = num_keys * group
    if cp > num_queries:
        return
    shares = share_heads(num_queries, num_keys, cp)
    assert [query for share in shares for query in share.queries] == list(range(num_queries))
    sizes = [len(share.queries) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    for share in shares:
        run, rest = divmod(len(share.queries), len(share.keys))
        assert rest == 0
        for place, query in enumerate(share.queries):
            assert share.keys[place // run] == query // group
        assert [key for run in share.key_runs for key in run] == list(share.keys)


def test_a_head_that_is_needed_twice_begins_a_run() -> None:
    assert HeadShare(range(4), (0, 1, 2, 3)).key_runs == [range(4)]
    assert HeadShare(range(2, 5), (1, 1, 2)).key_runs == [range(1, 2), range(1, 3)]
