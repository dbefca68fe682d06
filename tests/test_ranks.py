import multiprocessing
import time

import pytest
import torch

from ranks import RankError, run_ranks
from ranks_workers import (
    die_on,
    imported_at_first,
    is_alive_after_it_is_done,
    raise_on,
    return_unpicklable,
    scaled_sum,
    sleep_on,
    warn,
)


def test_results_are_in_rank_order_and_may_be_tensors() -> None:
    results = run_ranks(3, scaled_sum, torch.tensor([1.0, 2.0]))
    assert [rank for rank, _, _ in results] == [0, 1, 2]
    assert all(torch.equal(total, torch.tensor([6.0, 12.0])) for _, total, _ in results)
    assert {num_threads for _, _, num_threads in results} == {1}


def test_a_rank_has_all_imports_outside_garbage_collection() -> None:
    ((modules, frozen),) = run_ranks(1, imported_at_first)
    assert {"hydraulis.train.run", "pytest", "torch._dynamo", "torch.distributed"} <= modules
    assert frozen > 100_000


def test_a_failing_rank_is_named_while_others_wait() -> None:
    with pytest.raises(RankError, match=r"(?s)rank 1 failed:.*raise_on.*a planted mistake"):
        run_ranks(3, raise_on, 1)


def test_a_dead_rank_is_named() -> None:
    with pytest.raises(RankError, match="rank 2 died"):
        run_ranks(3, die_on, 2)


def test_an_unpicklable_result_is_a_failure() -> None:
    with pytest.raises(RankError, match="rank 0 failed"):
        run_ranks(1, return_unpicklable)


def test_a_warning_is_a_failure() -> None:
    with pytest.raises(RankError, match="UserWarning: a planted warning"):
        run_ranks(1, warn)


def test_a_finished_rank_stays_until_all_have_finished() -> None:
    assert run_ranks(2, is_alive_after_it_is_done, 0.5) == [True, True]


def test_a_hanging_rank_ends_at_the_timeout_and_no_process_is_left() -> None:
    begin = time.monotonic()
    stacks = r"(?s)ranks \[1\] were not done in time\nrank 1:.*ranks_workers.py\", line \d+ in sleep_on"
    with pytest.raises(RankError, match=stacks):
        run_ranks(2, sleep_on, 1, timeout_seconds=4.0)
    assert time.monotonic() - begin < 20.0
    assert multiprocessing.active_children() == []
