"""The steps of each epoch of a sampler, by the option that sets their size."""

from typing import Any

from hydraulis._core import LONGEST_SEQUENCE, pack_windows
from hydraulis.batching.epoch.filled_steps import FilledSteps
from hydraulis.batching.epoch.order import EpochOrder, Indices
from hydraulis.batching.epoch.steps import Steps, StepsBySequences, TokenShares, share_tokens
from hydraulis.batching.items.pool import SequencePool
from hydraulis.batching.step_planner import StepPlanner
from hydraulis.errors import InfeasibleError


def needs_plans(sampler: Any) -> bool:
    """Return whether plans say which sequences fit into a step of fixed micro-batches, not tokens alone.

    Args:
        sampler: `BalancedBatchSampler` with its options.
    """
    return sampler.cap_extra_tokens is not None or sampler.equal_sequences


class EpochDivision:
    """Divides epochs into steps.

    Args:
        sampler: `BalancedBatchSampler` with its options.
        pool: Items of an epoch.
        planner: Planner of the steps.
    """

    def __init__(self, sampler: Any, pool: SequencePool, planner: StepPlanner) -> None:
        self._pool = pool
        self._planner = planner
        self._slots = sampler.ranks * (sampler.micro_batches or 1)
        self._is_plain = not needs_plans(sampler)
        self._shares: StepsBySequences | TokenShares | FilledSteps
        if sampler.sequences_per_step is not None:
            self._shares = StepsBySequences(len(pool), sampler.sequences_per_step, sampler.drop_last)
        elif sampler.tokens_per_step is not None:
            self._shares = share_tokens(pool, sampler.tokens_per_step, drop_last=sampler.drop_last)
        else:
            self._shares = FilledSteps(
                cap_tokens=planner.cap_tokens,
                micro_batches=self._slots,
                drop_last=sampler.drop_last,
                allow_empty=sampler.allow_empty,
                count=sampler.steps_per_epoch,
            )

    def divide(self, order: EpochOrder) -> Steps:
        """Return the steps of the epoch with this order.

        Raises:
            InfeasibleError: The epoch has no such steps (code `batch_unplaceable`).
        """
        match self._shares:
            case StepsBySequences() as steps:
                return steps
            case FilledSteps() as filled:
                return filled.divide(self._pool, order, self._fits)
            case TokenShares() as shares:
                return shares.divide(self._pool, order)

    def _fits(self, items: Indices) -> bool:
        """Return whether a step of these items has a plan with the fixed number of micro-batches."""
        if self._is_plain:
            cap, tokens = self._planner.cap_tokens, self._pool.occupied(items)
            if int(tokens.sum()) <= cap:
                return True
            # The planner finds room wherever best-fit decreasing does.
            if cap <= LONGEST_SEQUENCE:
                return bool(len(pack_windows(tokens, window_tokens=cap)) <= self._slots)
        try:
            self._planner.plan(self._pool.step_items(items, self._planner.cost))
        except InfeasibleError:
            return False
        return True
