"""verl: `python examples/peers/verl_micro_batches.py`, the functions that its trainer and engines call."""

import time

import numpy as np
import torch
from tensordict import TensorDict
from toy import toy_data
from verl.utils import seqlen_balancing

from hydraulis.batching.adapters import verl_partition

RANKS, MOST_TOKENS = 4, 1024
rows = [torch.tensor(row) for row in toy_data(1024)["input_ids"]]
work = seqlen_balancing.calculate_workload(torch.tensor([len(row) for row in rows])).tolist()


def schedule() -> tuple[float, int]:
    """Share the sequences out as verl's trainer does, and cut micro-batches as its engines do."""
    owned = seqlen_balancing.get_seqlen_balanced_partitions(work, RANKS, equal_size=True)
    counts = []
    for part in owned:
        own = torch.nested.as_nested_tensor([rows[i] for i in part], layout=torch.jagged)
        batch = TensorDict({"input_ids": own}, [len(part)])
        micro_batches, _ = seqlen_balancing.rearrange_micro_batches(batch, MOST_TOKENS)
        assert max(len(one["input_ids"].values()) for one in micro_batches) <= MOST_TOKENS
        counts.append(len(micro_batches))
    slowest = max(sum(work[i] for i in part) for part in owned)
    return slowest * RANKS / sum(work), max(counts)


lengths = np.clip(np.random.default_rng(0).lognormal(np.log(1500), 1.2, 4096), 1, 32_768).astype(int)
many = seqlen_balancing.calculate_workload(torch.tensor(lengths)).tolist()
for name in ("before", "after"):
    ratio, count = schedule()
    print(f"{name}: {ratio:.6f} of the mean, {count} micro-batches")
    for equal in (True, False):
        start = time.process_time()
        parts = seqlen_balancing.get_seqlen_balanced_partitions(many, 64, equal)
        ms = (time.process_time() - start) * 1e3
        ratio = max(sum(many[i] for i in part) for part in parts) * 64 / sum(many)
        kind = "equal numbers" if equal else "any numbers"
        print(f"{name}: {ratio:.6f} of the mean for 4,096 sequences on 64 ranks, {kind}, {ms:.0f} ms")
    verl_partition.install()
