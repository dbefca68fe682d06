"""Messages between stages in float8: their bytes, their numbers, and a step with them."""

from functools import partial

import pytest
import torch
from torch import Tensor

from hydraulis.model.float8 import quantize
from hydraulis.runtime.pipeline.messages import Float8Messages
from ranks import run_ranks
from runtime.pipeline.messages_workers import MessageRun, run_with
from small_model import small_config

LENGTHS = [32, 31, 29, 27, 25, 24]
STRATEGIES = {"1x<pp3>": 3, "1x<tp2,pp2>": 4}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(5, 7), (1, 16), (0, 8)])
def test_a_message_brings_each_token_rounded_by_its_scale(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(3)
    x_tH = torch.randn(shape, generator=generator).mul(torch.logspace(-6, 6, shape[0])[:, None]).to(dtype)
    messages = Float8Messages(quantize)
    received_tH = torch.full_like(x_tH, torch.nan)
    message, room = messages.pack(x_tH), messages.room(received_tH)
    assert message.dtype == room.dtype == torch.uint8
    assert message.shape == room.shape == (shape[0] * (shape[1] + 4),)
    messages.unpack(room.copy_(message), received_tH)
    assert torch.equal(received_tH, quantize(x_tH).widened(dtype))
    # Half of the last of three bits, of the largest element's power of two.
    if x_tH.numel():
        error_t1 = (received_tH - x_tH).abs().amax(1, keepdim=True)
        assert (error_t1 <= x_tH.abs().amax(1, keepdim=True) / 16).all()


def test_a_token_that_is_not_finite_reaches_the_receiver_as_no_number() -> None:
    messages, x_tH = Float8Messages(quantize), torch.ones(3, 4)
    x_tH[1, 2] = torch.inf
    received_tH = torch.empty_like(x_tH)
    messages.unpack(messages.pack(x_tH), received_tH)
    assert received_tH.isfinite().all(dim=1).tolist() == [True, False, True]
    assert not received_tH[1].isfinite().any()


def place(message: Tensor) -> int:
    return message.untyped_storage().data_ptr()


def test_messages_of_a_list_take_turns_in_memory_of_the_largest_size() -> None:
    shapes = [(3, 16), (8, 16), (5, 16)]
    messages = Float8Messages(quantize).of_list(shapes)
    small_tH, large_tH, medium_tH = (torch.randn(shape) for shape in shapes)
    first, second = messages.pack(small_tH), messages.pack(large_tH)
    expected = second.clone()
    assert [message.untyped_storage().nbytes() for message in (first, second)] == [8 * 20, 8 * 20]
    assert place(first) != place(second)
    # The first has been sent, and the second has not.
    messages.sent(first)
    third = messages.pack(medium_tH)
    assert place(third) == place(first)
    assert torch.equal(second, expected)
    # What has been unpacked makes room for the next message that arrives, and for one that leaves.
    received_tH = torch.empty_like(medium_tH)
    messages.unpack(third, received_tH)
    assert torch.equal(received_tH, quantize(medium_tH).widened(torch.float32))
    assert place(messages.room(large_tH)) == place(third)
    # Another list has its own memory.
    assert messages.of_list(shapes).room(small_tH).untyped_storage().nbytes() == 8 * 20


def test_a_message_larger_than_those_of_the_list_gets_memory_of_its_own() -> None:
    messages, x_tH = Float8Messages(quantize), torch.randn(4, 8)
    small = messages.pack(x_tH[:1])
    messages.sent(small)
    assert messages.pack(x_tH).untyped_storage().nbytes() == 4 * 12
    # Its memory has the size that it had.
    assert small.untyped_storage().nbytes() == 12


@pytest.fixture(scope="module", params=STRATEGIES)
def runs(request: pytest.FixtureRequest) -> tuple[list[MessageRun], list[MessageRun]]:
    """The runs of all ranks with plain messages, and with messages in float8."""
    ranks = STRATEGIES[request.param]
    plain, rounded = (
        run_ranks(ranks, partial(run_with, float8_messages=is_float8), request.param, LENGTHS)
        for is_float8 in (False, True)
    )
    return plain, rounded


def test_messages_in_float8_have_a_byte_for_each_element_and_four_for_each_token(
    runs: tuple[list[MessageRun], list[MessageRun]],
) -> None:
    hidden = small_config().hidden_size
    for plain, rounded in zip(*runs, strict=True):
        assert {dtype for dtype, _ in plain.sent} == {torch.bfloat16}
        assert {dtype for dtype, _ in rounded.sent} == {torch.uint8}
        expected = [elements // hidden * (hidden + 4) for _, elements in plain.sent]
        assert [elements for _, elements in rounded.sent] == expected
    assert sum(len(rank.sent) for rank in runs[0]) > len(LENGTHS)


def test_the_rounding_is_warmed_up_in_each_direction(
    runs: tuple[list[MessageRun], list[MessageRun]],
) -> None:
    plain, rounded = runs
    assert not any(rank.warmed_up for rank in plain)
    assert [rank.warmed_up for rank in rounded] == {3: [1, 2, 1], 4: [1, 1, 1, 1]}[len(rounded)]


def test_a_step_with_messages_in_float8_has_a_loss_and_gradients_near_those_without(
    runs: tuple[list[MessageRun], list[MessageRun]],
) -> None:
    plain, rounded = runs
    for before, after in zip(plain, rounded, strict=True):
        assert after.loss == pytest.approx(before.loss, rel=0.01)
        assert 0.001 < (after.gradient - before.gradient).norm() / before.gradient.norm() < 0.2
    assert sum(rank.loss for rank in plain) != sum(rank.loss for rank in rounded)


def test_messages_that_take_turns_bring_the_same_numbers_in_less_memory() -> None:
    apart, in_turns = (
        run_ranks(3, partial(run_with, float8_messages=True, in_turns=in_turns), "1x<pp3>", LENGTHS)
        for in_turns in (False, True)
    )
    for before, after in zip(apart, in_turns, strict=True):
        assert torch.equal(before.gradient, after.gradient)
        assert (before.loss, before.evaluated) == (after.loss, after.evaluated)
        # Each message of the list had a place of its own.
        assert before.num_places > after.num_places
        # Three micro-batches in flight, one that arrives, in training; and one each in the evaluation.
        assert after.num_places <= 6


def test_an_evaluation_has_the_loss_of_training(runs: tuple[list[MessageRun], list[MessageRun]]) -> None:
    for run in runs:
        for rank in run:
            assert rank.evaluated == pytest.approx(rank.loss, rel=1e-6)
