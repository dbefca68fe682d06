"""accelerate: `torchrun --nproc-per-node 2 examples/peers/accelerate_fsdp.py [--fsdp]`.

On GPUs `accelerate launch` starts it too; with `--cpu`, accelerate 1.15 starts one process alone.
"""

import sys

import torch
from accelerate import Accelerator, DataLoaderConfiguration, FullyShardedDataParallelPlugin
from torch.utils.data import DataLoader
from toy import toy_data, toy_model

from hydraulis.batching import BalancedBatchSampler
from hydraulis.batching.collators import TransformersCollator

plugin = (
    FullyShardedDataParallelPlugin(fsdp_version=2, reshard_after_forward=True)
    if "--fsdp" in sys.argv
    else None
)
accelerator = Accelerator(
    cpu=True,
    fsdp_plugin=plugin,
    # accelerate distributes the batches of all ranks in turn; sizes vary.
    dataloader_config=DataLoaderConfiguration(even_batches=False),
)
data, model = toy_data(), toy_model()
sampler = BalancedBatchSampler(
    data,
    column="input_ids",
    cap_tokens=512,
    cost=model.config,
    ranks=accelerator.num_processes,
    sequences_per_step=40,
)
loader = DataLoader(data, batch_sampler=sampler, collate_fn=TransformersCollator())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

accelerator.print(f"{accelerator.num_processes} processes")
for epoch in range(2):
    loader.set_epoch(epoch)
    batches = iter(loader)
    for index in range(sampler.num_steps):
        step = sampler.step(index, epoch)
        count = len(step.micro_batches[0])
        total = torch.zeros(())
        for place in range(count):
            model.require_backward_grad_sync = place == count - 1
            # The mean over the step's targets: backward averages over the ranks.
            loss = model(**next(batches), num_items_in_batch=step.targets).loss
            accelerator.backward(loss * accelerator.num_processes)
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        total = accelerator.reduce(total, "sum")
        accelerator.print(f"epoch {epoch}, step {index}, loss {total:.3f}")
    assert next(batches, None) is None
# Meanwhile gloo's threads release the last sum: later they would abort the interpreter's shutdown.
accelerator.wait_for_everyone()
