"""Balanced rows for TRL's asynchronous GRPO.

    from trl.experimental.async_grpo import async_grpo_trainer
    async_grpo_trainer.TokenBudgetBatcher = BalancedTokenBudgetBatcher

before the trainer is built.
"""

from collections.abc import Iterator
from typing import Any

from trl.experimental.async_grpo.async_grpo_trainer import TokenBudgetBatcher
from trl.experimental.async_grpo.packing import TreeRow


class BalancedTokenBudgetBatcher(TokenBudgetBatcher):  # type: ignore[misc]
    """TRL's batcher, whose closed micro-batches are assigned to the ranks again, costliest group first.

    A sample arrives without knowledge of the next ones, so the last ones leave rows of unequal load. Once a
    micro-batch is closed all of its samples are known.
    """

    def __iter__(self) -> Iterator[list[TreeRow]]:
        """Yield micro-batches: one row for each rank, within the token budget, none empty."""
        for rows in super().__iter__():
            balanced = self._balanced(rows)
            yield min((rows, balanced), key=_slowest) if balanced else rows

    def _balanced(self, rows: list[TreeRow]) -> list[TreeRow] | None:
        groups: dict[Any, TreeRow] = {}
        for row in rows:
            for sample in row.samples:
                groups.setdefault(sample["group_id"], TreeRow()).add(sample)
        new = [TreeRow() for _ in rows]
        for group in sorted(groups.values(), key=lambda one: one.load, reverse=True):
            for sample in group.samples:
                own = [row for row in new if sample["group_id"] in row.groups] or new
                fitting = [row for row in own if row.fits(sample, self.token_budget)]
                fitting = fitting or [row for row in new if row.fits(sample, self.token_budget)]
                if not fitting:
                    return None
                min(fitting, key=lambda row: row.load).add(sample)
        return new if all(row.samples for row in new) else None


def _slowest(rows: list[TreeRow]) -> int:
    return max(int(row.load) for row in rows)
