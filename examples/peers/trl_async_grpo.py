"""TRL's asynchronous GRPO: `python examples/peers/trl_async_grpo.py`, its batcher and its packed rows."""

import numpy as np
import torch
from trl.experimental.async_grpo.async_grpo_trainer import TokenBudgetBatcher

from hydraulis.batching.adapters.trl_async_grpo import BalancedTokenBudgetBatcher

RANKS, BUDGET = 4, 2048
rng = np.random.default_rng(0)
rollouts = []
for prompt in range(120):
    head = rng.integers(0, 1000, rng.integers(5, 100))
    for _ in range(4):
        tail = rng.integers(0, 1000, int(np.clip(rng.lognormal(4.5, 1), 1, 1000)))
        tokens = torch.tensor(np.concatenate([head, tail]))
        rollouts.append(
            {
                "input_ids": tokens,
                "completion_mask": (torch.arange(len(tokens)) >= len(head)).long(),
                "old_log_probs": torch.zeros(len(tokens)),
                "advantage": 1.0,
                "group_id": prompt,
            }
        )

for name, batcher in (("before", TokenBudgetBatcher), ("after", BalancedTokenBudgetBatcher)):
    micro_batches = list(batcher(rollouts, RANKS, BUDGET, {}))
    packed = [[row.pack() for row in rows] for rows in micro_batches]
    assert max(len(row["input_ids"]) for rows in packed for row in rows) <= BUDGET
    # The attention of a row is the sum of its tokens' depths; the slowest row ends a micro-batch.
    loads = np.array([[row.load for row in rows] for rows in micro_batches])
    print(f"{name}: {loads.max(1).sum() / loads.mean(1).sum():.6f} of the mean, {len(loads)} micro-batches")
