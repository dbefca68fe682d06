"""The balanced sampler as axolotl's `MultipackBatchSampler`.

    from axolotl.core.trainers import base
    base.MultipackBatchSampler = BalancedMultipackBatchSampler

before the trainer is built. accelerate distributes the batches of all ranks in turn, so batches of similar
time follow each other.
"""

import os
from typing import Any

from axolotl.utils.samplers.multipack import MultipackBatchSampler

from hydraulis.batching.sampler import BalancedBatchSampler

# Micro-batches of a rank that are balanced together.
_SLOTS = 8


class BalancedMultipackBatchSampler(MultipackBatchSampler):  # type: ignore[misc]
    """Bins of equal time in every micro-batch of the ranks, in the order of axolotl's sampler.

    Attributes:
        cost: Time of a sequence, as `SequenceCost.of` takes it; set it before training.
    """

    cost: Any = (24_576, 1)
    _batches: list[list[list[int]]] | None = None

    def generate_batches(self, set_stats: bool = False) -> list[list[list[int]]]:  # noqa: FBT001  axolotl passes it so
        """Return batches of `batch_size` bins, each bin with at most `batch_max_len` tokens.

        Args:
            set_stats: Whether to count tokens and slots for the efficiency.
        """
        known: list[list[list[int]]] | None = self._batches
        if known is not None:
            return known
        indices = list(self.sampler)
        balanced = BalancedBatchSampler(
            self.lengths[indices],
            cap_tokens=self.batch_max_len,
            cost=self.cost,
            ranks=self.batch_size * int(os.environ.get("WORLD_SIZE", "1")),
            micro_batches=_SLOTS,
            shuffle=False,
            allow_empty=True,
        )
        bins = [[indices[item] for item in part] for part in balanced if part]
        batches = [bins[start : start + self.batch_size] for start in range(0, len(bins), self.batch_size)]
        if self.drop_last and batches and len(batches[-1]) < self.batch_size:
            batches.pop()
        if set_stats:
            self.total_tokens_used += sum(int(self.lengths[one].sum()) for batch in batches for one in batch)
            self.total_token_slots += sum(map(len, batches)) * self.batch_max_len
        self._batches = batches
        return batches
