"""Lightning: `python examples/peers/lightning_module.py`."""

import lightning
import torch
from torch.utils.data import DataLoader
from toy import toy_data, toy_model

from hydraulis.batching.adapters.lightning_data import BalancedDataModule
from hydraulis.batching.collators import TransformersCollator


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = toy_model()

    def training_step(self, batch: dict, index: int) -> torch.Tensor:
        # Lightning divides by the accumulated micro-batches, DDP by the ranks.
        step = self.trainer.datamodule.step(index)
        scale = self.trainer.accumulate_grad_batches * self.trainer.world_size
        loss = self.model(**batch, num_items_in_batch=step.targets).loss * scale
        self.log("loss", loss, prog_bar=False)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


if __name__ == "__main__":
    data, model = toy_data(), Model()
    module = BalancedDataModule(
        lambda sampler: DataLoader(data, batch_sampler=sampler, collate_fn=TransformersCollator()),
        lengths=data,
        column="input_ids",
        cap_tokens=512,
        cost=model.model.config,
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=2,
        accumulate_grad_batches=2,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, module)
    if trainer.global_rank == 0:
        print(f"{trainer.global_step} steps, loss of the last {float(trainer.callback_metrics['loss']):.3f}")
