"""Balanced rows for torchtitan's data loader: a fixed number of tokens each, several sequences in a row.

    rows = BalancedRows(samples, lengths, seq_len=8192, dp_rank=dp_rank, dp_world_size=dp_world_size,
                        rows_per_step=local_batch_size * accumulated_steps, cost=(24_576, 1))
    loader = ParallelAwareDataloader(rows, dp_rank, dp_world_size, batch_size=local_batch_size)

Use it with an attention that separates sequences by `positions` (`flex` or `varlen`, block causal). Rows
never end, so no rank runs out of data. Every sequence is whole and in each epoch once.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from hydraulis.batching.collators import Packing
from hydraulis.batching.collators.packed_samples import IGNORE_INDEX
from hydraulis.batching.options import check_data
from hydraulis.batching.sampler import BalancedBatchSampler
from hydraulis.errors import InvalidInputError

Row = tuple[dict[str, torch.Tensor], torch.Tensor]


class BalancedRows(IterableDataset[Row]):
    """An endless, resumable stream of this rank's rows.

    Args:
        samples: Samples by index, as `Packing.pack` takes them.
        lengths: Tokens of each sample, as `BalancedBatchSampler` takes them.
        seq_len: Tokens of a row.
        dp_rank: This data-parallel rank.
        dp_world_size: Number of data-parallel ranks.
        rows_per_step: Rows of a rank in one step.
        options: Further options of `BalancedBatchSampler`.

    Raises:
        InvalidInputError: There are more or fewer samples than lengths (code `lengths_invalid`).
    """

    def __init__(
        self,
        samples: Sequence[Any],
        lengths: object,
        *,
        seq_len: int,
        dp_rank: int,
        dp_world_size: int,
        **options: Any,
    ) -> None:
        options["micro_batches"] = options.pop("rows_per_step")
        self.sampler = BalancedBatchSampler(
            lengths, cap_tokens=seq_len, ranks=dp_world_size, rank=dp_rank, **options
        )
        self._samples = samples
        check_data(samples, self.sampler.num_sequences)
        self._packing = Packing(
            pad_to=seq_len,
            pad_sequence_to=self.sampler.pad_sequence_to,
            max_tokens=self.sampler.most_tokens if self.sampler.too_long == "truncate" else None,
            cap_tokens=seq_len,
        )

    def __iter__(self) -> Iterator[Row]:
        """Yield the tokens and positions of each row, and the next token of each as its label.

        Raises:
            InvalidInputError: A loader reads the rows in more than one worker process (code
                `argument_invalid`), or samples are longer than their lengths (`micro_batch_invalid`).
        """
        worker = get_worker_info()
        if worker is not None and worker.num_workers > 1:
            message = (
                f"num_workers is {worker.num_workers}: each worker process would read all rows of the rank; "
                "set it to 0 or 1"
            )
            raise InvalidInputError(message, code="argument_invalid")
        while True:
            for batch in self.sampler:
                packed = self._packing.pack([self._samples[index] for index in batch])
                label = torch.from_numpy(np.append(packed.labels[1:], IGNORE_INDEX))
                tokens, positions = torch.from_numpy(packed.tokens), torch.from_numpy(packed.positions)
                yield {"input": tokens, "positions": positions}, label

    def state_dict(self) -> dict[str, Any]:
        """Return the sampler's state after the last row."""
        return self.sampler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue at a saved state."""
        self.sampler.load_state_dict(state_dict)
