from hypothesis import given
from hypothesis import strategies as st

from hydraulis.parallel.context.zigzag import CutSequence, zigzag_split

# Many short ones, many of one length, and a long tail.
LENGTHS = st.lists(
    st.integers(1, 5) | st.integers(1, 60) | st.integers(1, 3000), min_size=1, max_size=30
) | st.builds(lambda length, count: [length] * count, st.integers(1, 40), st.integers(1, 100))
RANKS = st.integers(2, 9)


def taken(cut: CutSequence, rank: int) -> list[int]:
    return [*cut.front(rank), *cut.back(rank)]


def test_equal_chunks_are_taken_from_both_ends() -> None:
    long, short = zigzag_split([12, 4], 2)
    assert [taken(long, rank) for rank in (0, 1)] == [[0, 1, 2, 9, 10, 11], [3, 4, 5, 6, 7, 8]]
    assert sorted(taken(short, rank) for rank in (0, 1)) == [[0, 3], [1, 2]]


def test_short_sequences_are_spread_evenly() -> None:
    cuts = zigzag_split([1, 1, 1, 1], 4)
    assert [[len(taken(cut, rank)) for cut in cuts] for rank in range(4)] == [
        [1, 0, 0, 0],
        [0, 1, 0, 0],
        [0, 0, 1, 0],
        [0, 0, 0, 1],
    ]


@given(LENGTHS, RANKS)
def test_every_token_has_one_rank(lengths: list[int], cp: int) -> None:
    for cut, length in zip(zigzag_split(lengths, cp), lengths, strict=True):
        places = [place for rank in range(cp) for place in taken(cut, rank)]
        assert sorted(places) == list(range(length))


@given(LENGTHS, RANKS)
def test_chunks_are_in_order_and_each_rank_has_a_pair(lengths: list[int], cp: int) -> None:
    for cut, length in zip(zigzag_split(lengths, cp), lengths, strict=True):
        assert len(cut.bounds) == 2 * cp + 1
        assert list(cut.bounds) == sorted(cut.bounds)
        assert (cut.bounds[0], cut.bounds[-1]) == (0, length)
        assert sorted(cut.pairs) == list(range(cp))


@given(LENGTHS, RANKS)
def test_tokens_and_work_are_balanced(lengths: list[int], cp: int) -> None:
    cuts = zigzag_split(lengths, cp)
    tokens = [sum(len(taken(cut, rank)) for cut in cuts) for rank in range(cp)]
    assert max(tokens) - min(tokens) <= (sum(lengths) % cp > 0)
    keys = [sum(place + 1 for cut in cuts for place in taken(cut, rank)) for rank in range(cp)]
    assert max(keys) - min(keys) <= 3 * max(lengths), (tokens, keys)
