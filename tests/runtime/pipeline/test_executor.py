"""The executor runs a plan's lists, saves as many micro-batches as 1F1B, and leaves nothing behind."""

from collections.abc import Sequence

import pytest
import torch

from hydraulis.model.decoder import Decoder
from hydraulis.model.sequences import PackedSequences
from ranks import run_ranks
from runtime.pipeline.executor_workers import Report, run_plans, timed_rank_that_waits, tokens_of
from runtime.tiny import SEED, plan_for
from small_model import bind_parameters, initial_value, logits_of, small_config, token_loss

# Most fill more than half a cap of 32 tokens, so that micro-batches are many and of different lengths.
LENGTHS = (32, 31, 29, 27, 25, 24, 23, 22, 21, 20, 19, 18, 17, 5, 2, 1)
CASES = {"1x<pp3>": 3, "1x<pp2>+1x<1>": 3, "1x<tp2,pp2>": 4, "2x<pp2>": 4}


@pytest.fixture(scope="module")
def reports() -> dict[str, list[Report]]:
    """By strategy and rank; strategies of as many ranks run one after another, as in training."""
    by_strategy: dict[str, tuple[Report, ...]] = {}
    for world_size in (3, 4):
        strategies = [strategy for strategy, ranks in CASES.items() if ranks == world_size]
        by_rank = run_ranks(world_size, run_plans, strategies, LENGTHS, small_config().vocab_size)
        by_strategy |= dict(zip(strategies, zip(*by_rank, strict=True), strict=True))
    return {strategy: list(of_ranks) for strategy, of_ranks in by_strategy.items()}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, reports: dict[str, list[Report]]) -> tuple[str, list[Report]]:
    return request.param, reports[request.param]


def test_each_forward_and_backward_has_one_duration(case: tuple[str, list[Report]]) -> None:
    strategy, reports = case
    plan = plan_for(CASES[strategy], strategy, LENGTHS)
    for replica in plan.replicas:
        tokens = [sum(LENGTHS[i] for i in sequences) for sequences in replica.micro_batches]
        assert len(set(tokens)) > 1, "micro-batches of different lengths are what this is about"
        for rank in replica.ranks:
            report = reports[rank]
            assert report.num_forwards == report.num_backwards == len(replica.micro_batches)
            assert len(report.durations_ms) == 2 * len(replica.micro_batches)
            assert min(report.durations_ms) > 0


def test_the_losses_add_up_to_the_mean_over_all_targets(case: tuple[str, list[Report]]) -> None:
    strategy, reports = case
    plan = plan_for(CASES[strategy], strategy, LENGTHS)
    total = 0.0
    for rank, report in enumerate(reports):
        position = plan.position(rank)
        assert position is not None
        if position.stage < position.scheme.pp - 1:
            assert report.loss == 0.0
        elif position.tensor_rank == 0:
            total += report.loss
    assert total == pytest.approx(mean_loss(LENGTHS), rel=1e-10)


def mean_loss(lengths: Sequence[int]) -> float:
    config = small_config()
    with torch.device("meta"):
        model = Decoder(config)
    bind_parameters(model, lambda name: initial_value(name, config, SEED, torch.float64))
    loss = 0.0
    for sequence, length in enumerate(lengths):
        if length > 1:
            token_T = torch.from_numpy(tokens_of(sequence, lengths, config.vocab_size).astype("int64"))
            logits_TV = logits_of(model, token_T, PackedSequences.from_lengths([length], "cpu"))
            loss += token_loss(logits_TV[:-1], token_T[1:], sum(lengths) - len(lengths)).item()
    return loss


def test_an_iteration_leaves_no_tensor_or_graph(case: tuple[str, list[Report]]) -> None:
    for report in case[1]:
        assert report.left_over == [0, 0, 0, 0, 0]
        assert report.graphs_alive == 0
        assert report.gradients_awaited == 0


def test_an_empty_micro_batch_computes_and_sends_nothing() -> None:
    # Three caps of 32 tokens are what a pipeline of three stages holds at once.
    lengths = (90, 80, 70)
    plan = plan_for(3, "1x<pp3>", lengths, "in_flight")
    assert [len(sequences) for sequences in plan.replicas[0].micro_batches] == [1, 0, 0, 1, 0, 0, 1]
    vocab_size = small_config().vocab_size
    reports: list[Report] = [
        one for (one,) in run_ranks(3, run_plans, ["1x<pp3>"], lengths, vocab_size, "in_flight")
    ]
    assert sum(report.loss for report in reports) == pytest.approx(mean_loss(lengths), rel=1e-10)
    for report in reports:
        assert len(report.durations_ms) == 14
        assert report.left_over == [0, 0, 0, 0, 0]
        assert (report.graphs_alive, report.gradients_awaited) == (0, 0)
        # Of what memory cannot hold together it never has two.
        assert report.most_outputs == 1
        assert report.most_kept > 0


def test_no_stage_has_more_micro_batches_in_flight_than_1f1b(
    case: tuple[str, list[Report]],
) -> None:
    strategy, reports = case
    plan = plan_for(CASES[strategy], strategy, LENGTHS)
    for rank, report in enumerate(reports):
        position = plan.position(rank)
        assert position is not None
        assert report.most_outputs == position.scheme.pp - position.stage


def test_sent_tensors_do_not_pile_up(case: tuple[str, list[Report]]) -> None:
    """What a send keeps alive counts in no memory bound, so it must not grow with the micro-batches."""
    strategy, reports = case
    plan = plan_for(CASES[strategy], strategy, LENGTHS)
    deepest = max(replica.scheme.pp for replica in plan.replicas)
    assert max(report.num_forwards for report in reports) >= 5
    assert max(report.most_parked for report in reports) >= 1
    for report in reports:
        assert report.most_parked <= deepest + 1


def test_waiting_for_another_rank_takes_no_time() -> None:
    (first_ms, slept_ms), (last_ms, _) = run_ranks(2, timed_rank_that_waits)
    assert slept_ms >= 600
    assert 0 < first_ms < slept_ms / 2
    assert 0 < last_ms < slept_ms / 2
