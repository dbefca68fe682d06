import pytest

from helpers import refused
from hydraulis.model.sequences import PackedSequences


def test_positions_restart_in_each_segment() -> None:
    sequences = PackedSequences.from_lengths([3, 1, 2], "cpu")
    assert sequences.lengths == (3, 1, 2)
    assert sequences.num_tokens == 6
    assert sequences.position_T.tolist() == [0, 1, 2, 0, 0, 1]


def test_positions_are_on_the_device() -> None:
    assert PackedSequences.from_lengths([2], "meta").position_T.device.type == "meta"


@pytest.mark.parametrize("lengths", [[], [3, 0], [-1]])
def test_empty_segments_are_refused(lengths: list[int]) -> None:
    with refused("micro_batch_invalid", "lengths"):
        PackedSequences.from_lengths(lengths, "cpu")
