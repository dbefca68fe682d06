"""verl: `python examples/peers/verl_micro_batches.py`, the functions that its trainer and engines call."""

import time

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


for name in ("before", "after"):
    start = time.process_time()
    ratio, count = schedule()
    ms = (time.process_time() - start) * 1e3
    print(f"{name}: {ratio:.6f} of the mean, {count} micro-batches, {ms:.0f} ms")
    verl_partition.install()
