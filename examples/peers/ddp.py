"""Plain DDP: `torchrun --nproc-per-node 2 examples/peers/ddp.py`."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torchdata.stateful_dataloader import StatefulDataLoader
from toy import toy_data, toy_model

from hydraulis.batching import BalancedBatchSampler
from hydraulis.batching.collators import TransformersCollator

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
data, model = toy_data(), DistributedDataParallel(toy_model())
sampler = BalancedBatchSampler(
    data,
    column="input_ids",
    cap_tokens=512,
    cost=model.module.config,
    ranks=ranks,
    rank=rank,
    sequences_per_step=40,
    barrier="step",
)
loader = StatefulDataLoader(data, batch_sampler=sampler, collate_fn=TransformersCollator())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

for step, batches in sampler.group(loader, epochs=2):
    total = torch.zeros(())
    for place, batch in enumerate(batches):
        # Ranks have different numbers of micro-batches and meet in the last one.
        model.require_backward_grad_sync = place == len(step.own) - 1
        loss = model(**batch, num_items_in_batch=step.targets).loss
        (loss * ranks).backward()
        total += loss.detach()
    dist.all_reduce(total)
    if rank == 0:
        print(f"epoch {step.epoch}, step {step.index}, loss {total:.3f}")
    optimizer.step()
    optimizer.zero_grad()
# Meanwhile gloo's threads release the last sum: later they would abort the interpreter's shutdown.
dist.barrier()
dist.destroy_process_group()
