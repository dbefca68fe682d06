"""Batches for Megatron-core: packed sequences in its `thd` format.

Legend: T tokens of the micro-batch with padding, n sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hydraulis.batching.collators.packed_samples import IGNORE_INDEX, Packing, Sample, bounds
from hydraulis.errors import InvalidInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronCollator(Packing):
    """Tokens with shifted labels and a loss mask, and the fields of `PackedSeqParams`.

    With context parallelism every sequence is padded to a multiple of `2 * cp`, and with sequence parallelism
    of `2 * cp * tp`: set `pad_sequence_to` here and in the sampler. Padding belongs to the sequence before it
    in all offsets, as in Megatron's own schedules: with other offsets of the tokens alone, Transformer Engine
    leaves out FlashAttention.

    Raises:
        InvalidInputError: `pad_to` is neither a multiple nor a divisor of `pad_sequence_to`, so that padding
            of the micro-batch would break the divisor of its last sequence (code `argument_invalid`).
    """

    def __post_init__(self) -> None:
        # The class that `super` finds is the one before `slots` made another.
        Packing.__post_init__(self)
        if self.pad_to % self.pad_sequence_to and self.pad_sequence_to % self.pad_to:
            message = (
                f"pad_to is {self.pad_to} and pad_sequence_to {self.pad_sequence_to}: padding of the "
                "micro-batch belongs to its last sequence; give a multiple of pad_sequence_to"
            )
            raise InvalidInputError(message, code="argument_invalid")

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
        padded = packed.padded.copy() if packed.padded.size else np.zeros(1, dtype=np.int64)
        padded[-1] += size - padded.sum()
        target = np.append(packed.labels[1:], IGNORE_INDEX)
        counts = target != IGNORE_INDEX
        offsets = torch.from_numpy(bounds(padded))
        longest = int(padded.max())
        return {
            "tokens": torch.from_numpy(packed.tokens)[None],
            "labels": torch.from_numpy(np.where(counts, target, 0))[None],
            "loss_mask": torch.from_numpy(counts.astype(np.float32))[None],
            "position_ids": torch.from_numpy(packed.positions)[None],
            "num_targets": packed.num_targets,
            "packed_seq_params": {
                "qkv_format": "thd",
                "cu_seqlens_q": offsets,
                "cu_seqlens_kv": offsets,
                "cu_seqlens_q_padded": offsets,
                "cu_seqlens_kv_padded": offsets,
                "max_seqlen_q": longest,
                "max_seqlen_kv": longest,
            },
        }
