"""The data module in Lightning: coverage, and resumption from its checkpoint."""

from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from batching.drawn import COST, long_tail
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


def train(folder: Path, *, save: int = 100, resume: str | None = None) -> list[list[int]]:
    """Train 20 steps, and save a checkpoint after `save` of them."""
    rows: Any = torch.arange(60)
    module = BalancedDataModule(
        lambda sampler: DataLoader(rows, batch_sampler=sampler, collate_fn=torch.stack),
        lengths=LENGTHS,
        cap_tokens=200,
        cost=COST,
    )
    model = Model()
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=20,
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


@pytest.mark.parametrize("done", [3, 12, 15])
def test_a_resumed_training_reads_the_rest(tmp_path: Path, done: int) -> None:
    whole = train(tmp_path, save=done)
    per_epoch = next(n for n in range(1, 41) if len({i for batch in whole[:n] for i in batch}) == 60)
    assert sorted(i for batch in whole[:per_epoch] for i in batch) == list(range(60))
    rest = train(tmp_path, resume=str(tmp_path / f"step-{done}.ckpt"))
    assert rest == whole[2 * done :]
