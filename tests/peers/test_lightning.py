"""The data module in Lightning: coverage, and resumption from its checkpoint."""

from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from batching.drawn import COST, long_tail, sampler
from helpers import refused
from hydraulis.batching.adapters.lightning_data import BalancedDataModule

LENGTHS = long_tail(60, longest=100)


class Model(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[list[int]] = []

    def training_step(self, batch: torch.Tensor, _index: int) -> torch.Tensor:
        self.seen.append(batch.tolist())
        return self.weight * batch.sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def train(
    folder: Path,
    *,
    save: int | None = None,
    resume: str | None = None,
    workers: int = 0,
    lengths: Any = LENGTHS,
    **limits: Any,
) -> list[list[int]]:
    """Train 20 steps, and save a checkpoint after each `save` of them, or after each epoch."""
    rows: Any = torch.arange(60)
    module = BalancedDataModule(
        lambda sampler: DataLoader(rows, batch_sampler=sampler, collate_fn=torch.stack, num_workers=workers),
        lengths=lengths,
        cap_tokens=200,
        cost=COST,
    )
    model = Model()
    trainer = lightning.Trainer(
        accelerator="cpu",
        **(limits or {"max_steps": 20}),
        callbacks=[
            ModelCheckpoint(
                folder, "step-{step}", every_n_train_steps=save, save_top_k=-1, auto_insert_metric_name=False
            )
        ],
        accumulate_grad_batches=2,
        use_distributed_sampler=False,
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, module, ckpt_path=resume, weights_only=False)
    return model.seen


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("done", [3, 12, 13, 15])
def test_a_resumed_training_reads_the_rest(tmp_path: Path, done: int, workers: int) -> None:
    whole = train(tmp_path, save=done, workers=workers)
    per_epoch = next(n for n in range(1, 41) if len({i for batch in whole[:n] for i in batch}) == 60)
    assert sorted(i for batch in whole[:per_epoch] for i in batch) == list(range(60))
    rest = train(tmp_path, resume=str(tmp_path / f"step-{done}.ckpt"), workers=workers)
    assert rest == whole[2 * done :]


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_of_unequal_steps_are_trained_whole_and_resumed_at_their_end(
    tmp_path: Path, workers: int
) -> None:
    """Lightning reads the number of steps once, and saves at the end of each epoch by default."""
    lengths = long_tail(60, seed=7, longest=100)
    free = sampler(lengths, ranks=1, rank=0, cap_tokens=200, micro_batches=2)
    assert [free.count_steps(epoch) for epoch in range(3)] == [12, 12, 13]
    options: dict[str, Any] = {"lengths": lengths, "max_epochs": 3, "workers": workers}
    whole = train(tmp_path, **options)
    for epoch in range(3):
        assert sorted(i for batch in whole[26 * epoch : 26 * epoch + 26] for i in batch) == list(range(60))
    for steps in (13, 26):
        rest = train(tmp_path, resume=str(tmp_path / f"step-{steps}.ckpt"), **options)
        assert rest == whole[2 * steps :]


def test_more_epochs_with_more_steps_are_refused(tmp_path: Path) -> None:
    lengths = long_tail(60, seed=7, longest=100)
    train(tmp_path, lengths=lengths, max_epochs=2)
    with refused("checkpoint_mismatch", "steps_per_epoch = 12"):
        train(tmp_path, resume=str(tmp_path / "step-12.ckpt"), lengths=lengths, max_epochs=3)
