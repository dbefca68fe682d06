import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from helpers import refused
from hydraulis.batching import make_forest

# Few tokens, so that prefixes are common.
SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=12)


@given(sequences=SEQUENCES)
def test_each_prefix_is_stored_once(sequences: list[list[int]]) -> None:
    forest = make_forest(sequences)
    prefixes = {tuple(one[: size + 1]) for one in sequences for size in range(len(one))}
    assert len(forest.tokens) == len(prefixes)
    for sequence, path in zip(sequences, forest.paths, strict=True):
        assert forest.tokens[path].tolist() == sequence
        assert forest.positions[path].tolist() == list(range(len(sequence)))
        assert forest.parents[path].tolist() == [-1, *path[:-1].tolist()]
    assert len({tuple(forest.tokens[path]) for path in forest.paths}) == len(
        {tuple(one) for one in sequences}
    )


@given(sequences=SEQUENCES)
def test_a_token_sees_its_ancestors_and_itself(sequences: list[list[int]]) -> None:
    forest = make_forest(sequences)
    size = len(forest.tokens)
    expected = np.eye(size, dtype=bool)
    for token in range(size):
        ancestor = forest.parents[token]
        while ancestor >= 0:
            expected[token, ancestor] = True
            ancestor = forest.parents[ancestor]
    place = np.arange(size)
    seen = (place[:, None] >= place) & (place[:, None] < forest.ends)
    assert (seen == expected).all()
    # Pairs of a sequence alone are s (s + 1) / 2, which `squares` counts as s^2.
    assert forest.squares == 2 * expected.sum() - size


def test_without_common_prefixes_the_work_equals_that_of_the_sequences() -> None:
    assert make_forest([[1] * 4, [2] * 6]).squares == 16 + 36
    assert make_forest([[1, 2, 3], [1, 2, 4, 4]]).squares == 4 + (9 - 4) + (16 - 4)


def test_values_of_copies_add_up() -> None:
    forest = make_forest([[5, 6, 7], [5, 6, 8], [5, 6]])
    assert forest.add_up([[1, 1, 1], [0, 2, 3], [0.5, 4]]).tolist() == [1.5, 7, 1, 3]


def test_an_empty_sequence_is_named() -> None:
    with refused("micro_batch_invalid", "sequence 1"):
        make_forest([[1], []])
