"""Splits of the layers for slow stages: replicas that split the model differently equal one process."""

import pytest
import torch

from ranks import run_ranks
from runtime.one_process import OPTIMIZER, assert_equal, batches, model_config, one_process
from runtime.worker_workers import Batch, train

CONFIG = model_config(num_hidden_layers=5, tie_word_embeddings=True)
# The split changes from step to step, for one replica of two, with checkpointing, and for all.
STRATEGIES = (
    "4x<pp2>",
    "1x<tp2,pp2>+1x<pp2>+1x<pp2,split:1-4>",
    "2x<pp2,split:1-4>+2x<pp2,split:4-1>",
    "1x<tp2,pp2,split:4-1,full>+1x<pp3,split:1-3-1>",
    "1x<tp2,pp3,split:2-1-2>+1x<pp2,split:1-4,selective,full:2/5>",
    "8x<1>",
    "1x<cp2,pp2,split:3-2>+1x<pp4,split:1-1-2-1>",
    # Copies to host memory: in every layer, and in stages of which one copies a single layer or none.
    "2x<pp2,split:4-1,offload:2/5>+2x<pp2,split:1-4,offload>",
    "1x<tp2,pp3,split:3-1-1,full,offload:3/5>+1x<pp2,split:2-3,offload:1/5>",
    "1x<cp2,pp2,split:4-1,selective,offload:4/5>+1x<pp4,split:2-1-1-1,offload>",
)


def steps() -> list[tuple[str, Batch]]:
    return list(zip(STRATEGIES, batches(len(STRATEGIES), CONFIG.vocab_size), strict=True))


@pytest.mark.devices
def test_splits_of_the_layers_equal_one_process_in_float64() -> None:
    found = run_ranks(8, train, CONFIG, OPTIMIZER, torch.float64, steps())[0]
    assert [step.strategy for step in found] == list(STRATEGIES)
    assert_equal(found, one_process(CONFIG, torch.float64, steps()), 1e-10, 1e-10)
