"""torchtitan's data loader: `torchrun --nproc-per-node 2 examples/peers/torchtitan_rows.py`."""

from itertools import islice

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torchtitan.components.dataloader import ParallelAwareDataloader
from toy import toy_data, toy_model

from hydraulis.batching.adapters.torchtitan_rows import BalancedRows

STEPS, ACCUMULATED, LOCAL_BATCH = 8, 2, 2
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
data, model = toy_data(), DistributedDataParallel(toy_model())
rows = BalancedRows(
    data,
    [len(row) for row in data["input_ids"]],
    seq_len=256,
    dp_rank=rank,
    dp_world_size=ranks,
    rows_per_step=LOCAL_BATCH * ACCUMULATED,
    cost=model.module.config,
)
batches = iter(ParallelAwareDataloader(rows, rank, ranks, batch_size=LOCAL_BATCH))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

for step in range(STEPS):
    parts = list(islice(batches, ACCUMULATED))
    targets = sum((labels != -100).sum() for _, labels in parts)
    dist.all_reduce(targets)
    total = torch.zeros(())
    for place, (inputs, labels) in enumerate(parts):
        model.require_backward_grad_sync = place == ACCUMULATED - 1
        logits = model(inputs["input"], position_ids=inputs["positions"], use_cache=False).logits
        loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / targets
        (loss * ranks).backward()
        total += loss.detach()
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(total)
    if rank == 0:
        print(f"step {step}, loss {total:.3f}")
dist.destroy_process_group()
