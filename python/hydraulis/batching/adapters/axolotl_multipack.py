"""The balanced sampler as axolotl's `MultipackBatchSampler`.

    from hydraulis.batching.adapters import axolotl_multipack
    axolotl_multipack.install(cost=(24_576, 1))

before the trainer is built: axolotl counts the steps of a run with the same class. accelerate distributes the
batches of all ranks in turn, so batches of similar time follow each other.
"""

import os
from typing import Any

import numpy as np
from axolotl.utils.samplers.multipack import MultipackBatchSampler

from hydraulis.batching.adapters.replacement import replace
from hydraulis.batching.cost import SequenceCost
from hydraulis.batching.sampler import BalancedBatchSampler
from hydraulis.errors import InvalidInputError

# Most micro-batches of a rank that are balanced together.
_SLOTS = 8


class BalancedMultipackBatchSampler(MultipackBatchSampler):  # type: ignore[misc]
    """Bins of equal time in every micro-batch of the ranks, with the arguments of axolotl's sampler.

    Attributes:
        cost: Time of a sequence, as `SequenceCost.of` takes it.

    Raises:
        InvalidInputError: The bins are to keep the order of the data (code `argument_invalid`).
    """

    cost: Any = (24_576, 1)
    _batches: list[list[list[int]]] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.sequential:
            message = (
                "sample_packing_sequentially keeps the order of the data, and bins of equal time do not; "
                "set it to false, or leave axolotl's own sampler in place"
            )
            raise InvalidInputError(message, code="argument_invalid")

    def generate_batches(self, set_stats: bool = False) -> list[list[list[int]]]:  # noqa: FBT001  axolotl passes it so
        """Return batches of `batch_size` bins of at most `batch_max_len` tokens and `bin_size` samples.

        Args:
            set_stats: Whether to count tokens and slots for the efficiency.
        """
        known: list[list[list[int]]] | None = self._batches
        if known is not None:
            return known
        indices = list(self.sampler)
        lengths = self.lengths[indices]
        ranks = self.batch_size * int(os.environ.get("WORLD_SIZE", "1"))
        # Fewer tokens than fill a step would be spread over all of its micro-batches.
        needed = int(lengths.sum(dtype=np.int64)) // (ranks * self.batch_max_len)
        balanced = BalancedBatchSampler(
            lengths,
            cap_tokens=self.batch_max_len,
            cost=self.cost,
            ranks=ranks,
            micro_batches=min(_SLOTS, needed + 1),
            shuffle=False,
            allow_empty=True,
            **self._limit_samples(lengths),
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

    def _limit_samples(self, lengths: Any) -> dict[str, Any]:
        """Return the options by which a bin has at most `bin_size` samples, where tokens allow more."""
        most = int(np.searchsorted(np.cumsum(np.sort(lengths), dtype=np.int64), self.batch_max_len, "right"))
        if not self.bin_size or most <= self.bin_size:
            return {}
        # Each sample is one extra token, so their cap limits the number of samples.
        return {"extra_tokens": np.ones_like(lengths), "cap_extra_tokens": self.bin_size}


def install(cost: object) -> list[str]:
    """Replace axolotl's sampler in all of its modules: those that train, count steps and read streams.

    Args:
        cost: Time of a sequence, as `SequenceCost.of` takes it.

    Returns:
        Names of these modules.

    Raises:
        InvalidInputError: The cost is invalid (code `argument_invalid`).
    """
    BalancedMultipackBatchSampler.cost = SequenceCost.of(cost)
    return replace(
        "axolotl.utils.samplers",
        "MultipackBatchSampler",
        BalancedMultipackBatchSampler,
        needs="axolotl 0.19.0 and its requirements",
    )
