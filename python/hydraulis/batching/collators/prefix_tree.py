"""Batches in which sequences with a common prefix share its tokens, as in reinforcement learning.

Legend: T tokens of the micro-batch with padding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from hydraulis.batching.collators.packed_samples import IGNORE_INDEX, Packing, Sample, read_field, read_sample
from hydraulis.batching.items.prefix_tree import make_forest
from hydraulis.errors import InvalidInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixTreeCollator(Packing):
    """Trees of sequences end to end; each token of a common prefix is computed once.

    A token that is a target of several sequences counts once for each. Sequences of a batch share every
    common prefix, whether they are of one group or not.
    """

    def __call__(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Collate samples into one batch.

        Args:
            samples: Samples as `Packing.pack` takes them. A field `weights` with a number for each token,
                such as advantages, multiplies the loss of the sample's targets.

        Returns:
            `input_ids` and `position_ids`, int64 [1, T]; `ends`, int64 [T], for `tree_mask` and
            `tree_mask_mod`; `parents`, int64 [T], the token whose logits predict each token; `weights`,
            float32 [T], the weight of each token's loss; `num_targets`; and `paths`, the indices of each
            sample's tokens.

        Raises:
            InvalidInputError: A sample or the micro-batch is refused as by `Packing.pack`, `weights` have
                another number or a target's is not finite, or sequences are padded one by one (code
                `micro_batch_invalid`).
        """
        if self.pad_sequence_to != 1:
            message = (
                f"pad_sequence_to is {self.pad_sequence_to}: sequences of a tree cannot be padded; use pad_to"
            )
            raise InvalidInputError(message, code="micro_batch_invalid")
        tokens, counts, weights = [], [], []
        for index, sample in enumerate(samples):
            token, label = read_sample(sample, index)
            counted = label != IGNORE_INDEX
            counted[0] = False
            weight = _read_weights(sample, index, counted)
            tokens.append(token[: self.max_tokens])
            counts.append(counted[: self.max_tokens])
            weights.append(weight[: self.max_tokens])
        forest = make_forest(tokens)
        used = len(forest.tokens)
        size = max(1, used)
        size += -size % self.pad_to
        self.check_cap(size)
        padding = np.arange(size - used)
        token_T = np.concatenate([forest.tokens, np.full_like(padding, self.pad_token)])
        position_T = np.concatenate([forest.positions, padding])
        weight_T = np.concatenate([forest.add_up(weights), np.zeros(len(padding))])
        return {
            "input_ids": torch.from_numpy(token_T)[None],
            "position_ids": torch.from_numpy(position_T)[None],
            "ends": torch.from_numpy(np.concatenate([forest.ends, np.full_like(padding, size)])),
            "parents": torch.from_numpy(np.concatenate([forest.parents, np.full_like(padding, -1)])),
            "weights": torch.from_numpy(weight_T.astype(np.float32)),
            "num_targets": int(sum(counted.sum() for counted in counts)),
            "paths": [torch.from_numpy(path) for path in forest.paths],
        }


def _read_weights(sample: Sample, index: int, counted: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Return the weight of each token, 0 for those that are no target, float64 [tokens of the sample]."""
    weights = read_field(sample, "weights", index, len(counted), kinds="iuf")
    if weights is None:
        return counted.astype(np.float64)
    weighted = np.where(counted, weights, 0.0)
    wrong = np.flatnonzero(~np.isfinite(weighted))
    if wrong.size:
        message = (
            f"sample {index} has the weight {weighted[wrong[0]]} for token {wrong[0]}, a target: it must be "
            "a finite number; correct it, or mask the token"
        )
        raise InvalidInputError(message, code="micro_batch_invalid")
    return weighted


def tree_mask(ends: Tensor) -> Tensor:
    """Return the mask of a batch for attention of torch and transformers, bool [1, 1, T, T].

    Args:
        ends: Index after the last descendant of each token, int64 [T].
    """
    place = torch.arange(len(ends), device=ends.device)
    seen: Tensor = (place[:, None] >= place) & (place[:, None] < ends)
    return seen[None, None]


def tree_mask_mod(ends: Tensor) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Return the mask of a batch as `torch.nn.attention.flex_attention.create_block_mask` takes it.

    Args:
        ends: Index after the last descendant of each token, int64 [T].
    """

    def mask_mod(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:  # noqa: ARG001
        return (query >= key) & (query < ends[key])

    return mask_mod


def tree_loss(logits: Tensor, batch: dict[str, Any]) -> Tensor:
    """Add up the cross-entropy of a batch's targets, each with its weight.

    Args:
        logits: Logits of the batch's tokens, [1, T, vocabulary].
        batch: Batch of `PrefixTreeCollator`.

    Returns:
        The sum; divided by the targets of the whole step it is a mean over the sequences' targets.
    """
    target = torch.nonzero(batch["weights"]).flatten()
    losses = F.cross_entropy(
        logits[0, batch["parents"][target]], batch["input_ids"][0, target], reduction="none"
    )
    total: Tensor = (losses * batch["weights"][target].to(losses.dtype)).sum()
    return total
