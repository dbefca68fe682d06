"""Batches for Megatron-core: packed sequences in its `thd` format.

Legend: T tokens of the micro-batch with padding, n sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hydraulis.batching.collators.packed_samples import IGNORE_INDEX, Packing, Sample, bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronCollator(Packing):
    """Tokens with shifted labels and a loss mask, and the fields of `PackedSeqParams`.

    With context parallelism every sequence is padded to a multiple of `2 * cp`, and with sequence parallelism
    of `2 * cp * tp`: set `pad_sequence_to` here and in the sampler. Padding of the micro-batch belongs to the
    last sequence, as `cu_seqlens_q_padded` says.
    """

    def __call__(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Collate samples into one batch.

        Args:
            samples: Samples as `Packing.pack` takes them.

        Returns:
            `tokens`, `labels` and `position_ids`, int64 [1, T]; `loss_mask`, float32 [1, T]; `num_targets`,
            its sum; and `packed_seq_params`, the keyword arguments of `PackedSeqParams`, with int32 offsets.
            The label at t is the token that logits at t predict.
        """
        packed = self.pack(samples)
        size = len(packed.tokens)
        # A micro-batch without samples is one sequence of padding.
        lengths = packed.lengths if packed.lengths.size else np.array([size], dtype=np.int64)
        padded = lengths.copy() if not packed.padded.size else packed.padded.copy()
        padded[-1] += size - padded.sum()
        target = np.append(packed.labels[1:], IGNORE_INDEX)
        counts = target != IGNORE_INDEX
        real, offsets = (torch.from_numpy(bounds(sizes)) for sizes in (lengths, padded))
        longest = int(padded.max())
        return {
            "tokens": torch.from_numpy(packed.tokens)[None],
            "labels": torch.from_numpy(np.where(counts, target, 0))[None],
            "loss_mask": torch.from_numpy(counts.astype(np.float32))[None],
            "position_ids": torch.from_numpy(packed.positions)[None],
            "num_targets": packed.num_targets,
            "packed_seq_params": {
                "qkv_format": "thd",
                "cu_seqlens_q": real,
                "cu_seqlens_kv": real,
                "cu_seqlens_q_padded": offsets,
                "cu_seqlens_kv_padded": offsets,
                "max_seqlen_q": longest,
                "max_seqlen_kv": longest,
            },
        }
