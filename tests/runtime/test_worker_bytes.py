"""Any strategy sends the bytes that ZeRO-1 sends."""

import pytest
import torch

from ranks import run_ranks
from runtime.one_process import OPTIMIZER, assert_equal, batches, model_config, one_process
from runtime.worker_workers import train
from runtime.zero_1 import assert_sends_bytes_of_replica_groups


@pytest.mark.parametrize(
    ("strategy", "node"),
    [("4x<tp2>", 8), ("2x<tp4>", 4), ("1x<tp2,cp2>+2x<tp2>", 8), ("2x<tp2,pp2>", 8), ("1x<tp2,cp2,pp2>", 4)],
)
@pytest.mark.devices
def test_ranks_with_constant_local_shards_send_the_bytes_of_zero_1(strategy: str, node: int) -> None:
    config = model_config(tie_word_embeddings=True)
    # Of the first batch replicas have no work.
    steps = [(strategy, batch) for batch in batches(2, config.vocab_size)]
    result = run_ranks(8, train, config, OPTIMIZER, torch.float64, steps, ranks_per_node=node)[0]
    assert_equal(result, one_process(config, torch.float64, steps), 1e-10, 1e-10)
    assert_sends_bytes_of_replica_groups(result[1:])


# A narrow rank's parameters arrive, and its gradients leave, in another order than that in which they lie.
@pytest.mark.parametrize(
    ("strategies", "node"),
    [
        (["2x<tp4>", "1x<tp4>+1x<tp2>+2x<1>", "1x<tp2,cp2>+4x<1>", "4x<tp2>", "8x<1>"], 8),
        (["1x<cp4>+2x<tp2>", "4x<tp2>", "2x<cp2>+2x<tp2>"], 4),
    ],
)
def test_ranks_with_nested_slices_send_the_bytes_of_zero_1(strategies: list[str], node: int) -> None:
    config = model_config(tie_word_embeddings=True)
    # Of the first batch replicas have no work.
    chosen = [strategies[0], *strategies, strategies[0]]
    # Enough sequences for every rank.
    steps = list(zip(chosen, batches(len(chosen), config.vocab_size, 24), strict=True))
    result = run_ranks(8, train, config, OPTIMIZER, torch.float64, steps, ranks_per_node=node)[0]
    assert_equal(result, one_process(config, torch.float64, steps), 1e-10, 1e-10)
    assert_sends_bytes_of_replica_groups(result[1:])
