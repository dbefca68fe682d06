"""torchtitan's data loader over balanced rows; the cases follow its tests of checkpointed data sets."""

from itertools import islice

import torch
from torchtitan.components.dataloader import ParallelAwareDataloader

from batching.adapters.test_torchtitan_rows import rows


def loader() -> ParallelAwareDataloader:
    return ParallelAwareDataloader(rows(), 0, 2, batch_size=3)


def test_a_batch_is_the_rows_of_a_step() -> None:
    inputs, labels = next(iter(loader()))
    assert inputs["input"].shape == inputs["positions"].shape == labels.shape == (3, 128)


def test_a_loaded_state_continues_after_the_last_batch() -> None:
    expected = [batch["input"] for batch, _ in islice(loader(), 8)]
    first = loader()
    list(islice(first, 3))
    second = loader()
    second.load_state_dict(first.state_dict())
    found = [batch["input"] for batch, _ in islice(second, 5)]
    assert all(torch.equal(one, other) for one, other in zip(found, expected[3:], strict=True))
