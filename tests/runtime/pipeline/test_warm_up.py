"""A stage computes once before its first step, and ranks are connected with those that they send to."""

import pytest
import torch

from hydraulis.runtime.pipeline.warm_up import warm_up_lengths
from ranks import run_ranks
from runtime.pipeline.warm_up_workers import Warmed, connected_pairs, train

STRATEGIES = ["1x<tp2,pp2>", "1x<pp3>+1x<1>", "2x<cp2>", "1x<tp4>", "1x<tp2,pp2>"]
LENGTHS = [30, 20, 18, 9, 7, 3]


@pytest.fixture(scope="module")
def warm() -> list[Warmed]:
    result: list[Warmed] = run_ranks(4, train, STRATEGIES, LENGTHS, "warm")
    return result


def test_each_stage_is_warmed_up_once_without_transfers_in_flight(warm: list[Warmed]) -> None:
    for rank in warm:
        assert rank.forwards == [1] * 4
        assert rank.is_unchanged == [True] * 4
        assert rank.in_flight == 0
        # What a stage sends is packed once too: hidden states, and their gradients.
        assert all(packed == sent for packed, sent in rank.messages)
    assert {sent for rank in warm for _, sent in rank.messages} == {0, 1, 2}


def test_a_warm_up_changes_no_step(warm: list[Warmed]) -> None:
    cold: list[Warmed] = run_ranks(4, train, STRATEGIES, LENGTHS, "cold")
    assert [rank.losses for rank in warm] == [rank.losses for rank in cold]
    assert not any(sum(rank.forwards) for rank in cold)
    # The check of the gradients does fail without one.
    assert not any(any(rank.is_unchanged) for rank in cold)


def test_all_ranks_connect_the_same_pairs_including_those_of_their_messages() -> None:
    found = run_ranks(4, connected_pairs, "1x<tp2,pp2>", LENGTHS)
    assert [pairs for pairs, _ in found] == [{(0, 2), (1, 3)}] * 4
    for rank, (pairs, peers) in enumerate(found):
        assert peers == {peer for pair in pairs if rank in pair for peer in pair if peer != rank}


def test_kernels_that_are_compiled_for_many_and_for_long_sequences_are_warmed_up_too() -> None:
    assert warm_up_lengths(torch.device("cpu"), 6) == [[24]]
    small, many, long = warm_up_lengths(torch.device("cuda"), 6)
    assert small == [24]
    # The limits of FlashAttention-4: BIN_BATCH_SEARCH_THRESH, and twice its tile of 128 queries.
    assert len(many) > 256
    assert max(long) > 2 * 128
