"""Batches without padding between sequences, for transformers and for variable-length attention kernels.

Legend: T tokens of the micro-batch with padding, n sequences, and the padding as one more if there is some.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hydraulis.batching.collators.packed_samples import Packing, Sample, bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersCollator(Packing):
    """One row of sequences end to end, with the keyword arguments of a transformers model.

    A model keeps the sequences apart by `cu_seq_lens_q` under flash attention, and by `position_ids` under
    other attention. The latter requires a forward without cache, so a batch says `use_cache=False`:
    transformers 5.23 ignores restarting positions where there is a cache, and sequences then attend to each
    other. Llama, Qwen2 and 3, Mistral, Mixtral, Gemma, Phi, OLMo, GLM-4, DeepSeek-V3 and Cohere2 keep them
    apart. State-space and convolution models (Mamba, LFM2), models with ALiBi (BLOOM, MPT), OPT, Falcon, and
    gpt-oss with eager attention do not; `check_packing` tells. The trainer counts
    `num_items_in_batch` from the labels.
    """

    def __call__(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Collate samples into one batch.

        Args:
            samples: Samples as `Packing.pack` takes them.

        Returns:
            `input_ids`, `labels` and `position_ids`, int64 [1, T]; `cu_seq_lens_q` and `cu_seq_lens_k`, int32
            [n + 1]; `max_length_q` and `max_length_k`; and `use_cache`. The model shifts the labels.
        """
        packed = self.pack(samples)
        offsets = bounds(packed.padded, len(packed.tokens))
        longest = int((offsets[1:] - offsets[:-1]).max())
        return {
            "input_ids": torch.from_numpy(packed.tokens)[None],
            "labels": torch.from_numpy(packed.labels)[None],
            "position_ids": torch.from_numpy(packed.positions)[None],
            "cu_seq_lens_q": torch.from_numpy(offsets),
            "cu_seq_lens_k": torch.from_numpy(offsets),
            "max_length_q": longest,
            "max_length_k": longest,
            "use_cache": False,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class VarlenCollator(Packing):
    """Sequences end to end with the arguments of flash-attn's and torch's variable-length attention."""

    def __call__(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Collate samples into one batch.

        Args:
            samples: Samples as `Packing.pack` takes them.

        Returns:
            `input_ids`, `labels` and `position_ids`, int64 [T]; `cu_seqlens`, int32 [n + 1]; `max_seqlen`;
            and `num_targets`, the labels that count. Logits at t predict the label at t + 1.
        """
        packed = self.pack(samples)
        offsets = bounds(packed.padded, len(packed.tokens))
        return {
            "input_ids": torch.from_numpy(packed.tokens),
            "labels": torch.from_numpy(packed.labels),
            "position_ids": torch.from_numpy(packed.positions),
            "cu_seqlens": torch.from_numpy(offsets),
            "max_seqlen": int((offsets[1:] - offsets[:-1]).max()),
            "num_targets": packed.num_targets,
        }
