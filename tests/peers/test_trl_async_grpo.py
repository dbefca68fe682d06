"""TRL's token budget for asynchronous GRPO, with our assignment of its rows."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from trl.experimental.async_grpo.async_grpo_trainer import TokenBudgetBatcher

from hydraulis.batching.adapters.trl_async_grpo import BalancedTokenBudgetBatcher


def rollouts(seed: int, prompts: int = 60) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    samples: list[dict[str, Any]] = []
    for prompt in range(prompts):
        head = rng.integers(0, 1000, rng.integers(5, 60))
        for _ in range(4):
            tail = rng.integers(0, 1000, int(np.clip(rng.lognormal(3.5, 1), 1, 400)))
            samples.append(
                {
                    "input_ids": torch.tensor(np.concatenate([head, tail])),
                    "completion_mask": torch.tensor([0] * len(head) + [1] * len(tail)),
                    "group_id": prompt,
                    "number": len(samples),
                }
            )
    return samples


def slowest(micro_batches: list[Any]) -> int:
    return sum(max(row.load for row in rows) for rows in micro_batches)


@pytest.mark.parametrize("ranks", [2, 4])
def test_rows_are_within_the_budget_and_better_balanced(ranks: int) -> None:
    theirs = ours = 0
    for seed in range(3):
        samples = rollouts(seed)
        plain = list(TokenBudgetBatcher(samples, ranks, 1000, {}))
        balanced = list(BalancedTokenBudgetBatcher(samples, ranks, 1000, {}))
        kept = Counter(s["number"] for rows in plain for row in rows for s in row.samples)
        assert Counter(s["number"] for rows in balanced for row in rows for s in row.samples) == kept
        assert max(len(row.tokens) for rows in balanced for row in rows) <= 1000
        assert all(row.samples for rows in balanced for row in rows)
        assert [len(rows) for rows in balanced] == [len(rows) for rows in plain]
        theirs, ours = theirs + slowest(plain), ours + slowest(balanced)
    assert ours < theirs
