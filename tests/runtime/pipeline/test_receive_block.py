"""The places of received tensors in one block: never shared, used again, and without effect on gradients."""

from itertools import combinations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from hydraulis._core import Backward, Forward, SendReceive
from hydraulis.runtime.pipeline.forward_only import _receiving_inputs
from hydraulis.runtime.pipeline.receive_block import ReceiveBlock, place_received
from ranks import run_ranks
from runtime.pipeline.executor_workers import gradients_in_places, losses_in_places
from runtime.tiny import plan_for


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=12),
    stages=st.sampled_from([2, 3]),
    rank=st.integers(0, 5),
    zeros=st.sets(st.integers(0, 11)),
    evaluates=st.booleans(),
)
# First places that fit would take more than three of the largest size.
@example(lengths=[6, 6, 26, 26, 32], stages=3, rank=1, zeros=set(), evaluates=False)
def test_no_two_received_tensors_that_exist_at_a_time_overlap(
    lengths: list[int], stages: int, rank: int, zeros: set[int], *, evaluates: bool
) -> None:
    plan = plan_for(6, f"{6 // stages}x<pp{stages}>", [*lengths, *[7] * 4], "in_flight")
    instructions = plan.instructions(rank)
    last_use = Forward if evaluates else Backward
    if evaluates:
        instructions = _receiving_inputs(instructions)
    replica = next(one for one in plan.replicas if rank in one.ranks)
    elements = [
        0 if index in zeros else 64 * int(plan.lengths[ids].sum())
        for index, ids in enumerate(replica.micro_batches)
    ]
    places, size = place_received(instructions, elements)
    exists: set[tuple[bool, int]] = set()
    seen, most = set(), 0
    for instruction in instructions:
        if isinstance(instruction, SendReceive) and instruction.receive is not None:
            one = (instruction.next, instruction.receive)
            if elements[instruction.receive]:
                exists.add(one)
                seen.add(one)
        elif isinstance(instruction, last_use):
            exists -= {(True, instruction.micro_batch), (False, instruction.micro_batch)}
        most = max(most, len(exists))
        spans = [(places[one], places[one] + elements[one[1]]) for one in exists]
        for (first, end), (other, other_end) in combinations(spans, 2):
            assert end <= other or other_end <= first
        assert all(first % 128 == 0 and end <= size for first, end in spans)
    assert places.keys() == seen
    # Never more than a place of the largest received tensor for each one that exists at a time.
    largest = max((-(-elements[micro_batch] // 128) * 128 for _, micro_batch in seen), default=0)
    assert size <= most * largest
    if len(set(elements) - {0}) == 1:
        assert size == most * largest


def test_received_tensors_share_memory_and_no_version() -> None:
    (replica,) = plan_for(2, "1x<pp2>", [30] * 6, "in_flight").replicas
    plan = plan_for(2, "1x<pp2>", [30] * 6, "in_flight")
    count = len(replica.micro_batches)
    block = ReceiveBlock(plan.instructions(1), [256] * count, torch.float32, torch.device("cpu"))
    first, later = (block.tensor(index, (2, 128), is_gradient=False) for index in (0, count - 1))
    assert first.shape == (2, 128)
    assert first.is_contiguous()
    assert count > 1
    # The last stage has one micro-batch at a time: all use one place.
    assert first.data_ptr() == later.data_ptr()
    version = first._version
    later.fill_(1.0)
    assert first.eq(1.0).all()
    assert first._version == version


@pytest.mark.parametrize(("ranks", "strategy"), [(2, "1x<pp2>"), (3, "1x<pp3>")])
def test_gradients_are_the_same_to_the_bit(ranks: int, strategy: str) -> None:
    for (plain, placed), places in run_ranks(
        ranks, gradients_in_places, strategy, [30, 5, 17, 29, 3, 11, 30]
    ):
        assert any(plain)
        assert plain == placed
        assert places


def test_an_evaluation_has_the_same_loss_to_the_bit_in_one_place_for_all_inputs() -> None:
    lengths = [30, 5, 17, 29, 3, 11, 30]
    by_rank = run_ranks(3, losses_in_places, "1x<pp3>", lengths)
    for stage, ((plain, placed), micro_batches, places) in enumerate(by_rank):
        assert plain == placed
        assert bool(plain) == (stage == 2)
        # A stage has one input at a time; the first one receives none.
        assert (len(micro_batches) > 1) == (stage > 0)
        assert places == (stage > 0)
