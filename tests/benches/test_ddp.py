"""The comparison with plain data parallelism: it runs, and both ways train the same model."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benches.ddp_workers import compared
from benches.loading import load_script
from ranks import run_ranks

BENCH = load_script("ddp")


def test_both_ways_train_the_same_model_on_the_same_tokens(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    outputs = run_ranks(2, compared, str(path))
    assert outputs[1] == ""
    assert "losses differ by" in outputs[0]
    figures = json.loads(path.read_text())
    assert figures["loss_difference"] < 1e-4
    assert figures["cap"] == 64
    assert len(figures["tokens"]) == 3
    for way in ("hydraulis", "ddp"):
        assert all(rate > 0 for rate in figures[way].values())
    assert figures["strategies"] == {"2x<1>": 1}
    assert all(share >= 0 for share in figures["share_of_wall"].values())


@given(lengths=st.lists(st.integers(1, 50), min_size=20, max_size=60), ranks=st.integers(1, 4))
def test_arrival_order_keeps_the_order_the_cap_and_every_sequence(lengths: list[int], ranks: int) -> None:
    cap = 50
    if sum(lengths) < ranks * cap:
        return
    by_rank = BENCH.arrival_order(np.array(lengths), cap, ranks)
    arrived = [
        by_rank[number % ranks][number // ranks] for number in range(sum(len(mine) for mine in by_rank))
    ]
    assert [place for micro_batch in arrived for place in micro_batch] == list(range(len(lengths)))
    for number, micro_batch in enumerate(arrived):
        tokens = sum(lengths[place] for place in micro_batch)
        assert tokens <= cap
        if number + 1 < len(arrived):
            assert tokens + lengths[arrived[number + 1][0]] > cap


def test_a_batch_that_fills_no_micro_batch_for_each_rank_is_refused() -> None:
    with pytest.raises(AssertionError, match="micro-batch"):
        load_script("ddp").arrival_order(np.array([5, 5]), 50, 2)
