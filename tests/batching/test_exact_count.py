import numpy as np
import pytest

from hydraulis.batching.exact_count import arrange_bins, fill_empty

TIMES = np.array([8.0, 7.0, 6.0, 5.0, 1.0, 1.0])


def bins(*parts: list[int]) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    return [np.array(part, dtype=np.int64) for part in parts]


def lists(parts: object) -> object:
    return [[part.tolist() for part in rank] for rank in parts]  # type: ignore[attr-defined]


def test_the_longest_bins_are_assigned_first_to_the_least_loaded_rank() -> None:
    arranged = arrange_bins(bins([3], [0], [2], [1]), TIMES, 2, by_slot=False)
    assert lists(arranged) == [[[0], [3]], [[1], [2]]]


def test_bins_of_similar_time_share_a_slot() -> None:
    arranged = arrange_bins(bins([3], [0], [2], [1]), TIMES, 2, by_slot=True)
    assert lists(arranged) == [[[0], [2]], [[1], [3]]]


@pytest.mark.parametrize("own", [[0, 4, 5], [0, 5, 4]])
def test_an_empty_micro_batch_takes_the_shortest_sequence_of_its_rank(own: list[int]) -> None:
    filled = fill_empty([bins(own, []), bins([1, 2], [3])], TIMES)
    shortest = own[1]
    assert lists(filled) == [[[i for i in own if i != shortest], [shortest]], [[1, 2], [3]]]


def test_a_rank_without_a_spare_sequence_takes_one_of_another_rank() -> None:
    assert lists(fill_empty([bins([0], []), bins([1, 2], [3])], TIMES)) == [[[0], [2]], [[1], [3]]]
