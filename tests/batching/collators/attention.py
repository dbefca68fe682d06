"""A tiny model whose attention is what a batch's metadata says, for probes of leakage."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

VOCABULARY = 97


def made_samples(sizes: list[int], seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [{"input_ids": rng.integers(1, VOCABULARY, size).tolist()} for size in sizes]


def attend(token_T: torch.Tensor, position_T: torch.Tensor, mask_TT: torch.Tensor) -> torch.Tensor:
    """Apply two attention layers in float64 to embeddings of tokens and positions, [T, 16]."""
    random = torch.Generator().manual_seed(0)
    embedding = torch.randn(VOCABULARY, 16, generator=random, dtype=torch.float64)
    places = torch.randn(512, 16, generator=random, dtype=torch.float64)
    x = embedding[token_T] + places[position_T]
    for _ in range(2):
        x = x + F.scaled_dot_product_attention(x[None], x[None].roll(3, -1), x[None], mask_TT)[0]
    return x


def causal_segments(offsets: torch.Tensor, size: int) -> torch.Tensor:
    """Return the mask [T, T] of causal attention inside of segments."""
    segment = torch.bucketize(torch.arange(size), offsets[1:], right=True)
    same: torch.Tensor = segment[:, None] == segment[None]
    return same.tril()


def leaks(
    collate: Callable[[list[dict[str, Any]]], Any], run: Callable[[Any], list[torch.Tensor]], sizes: list[int]
) -> list[tuple[int, int]]:
    """Perturb one token of each sequence; list the pairs of it and another sequence that changes.

    Also asserts that the sequence itself changes, so that a probe that sees nothing fails.
    """
    samples = made_samples(sizes)
    before = run(collate(samples))
    found = []
    for changed in range(len(samples)):
        tokens = list(samples[changed]["input_ids"])
        tokens[0] = tokens[0] % (VOCABULARY - 1) + 1
        perturbed = [dict(one) for one in samples]
        perturbed[changed] = {"input_ids": tokens}
        after = run(collate(perturbed))
        moved = [not torch.equal(one, other) for one, other in zip(before, after, strict=True)]
        assert moved[changed]
        found += [(changed, other) for other in range(len(samples)) if other != changed and moved[other]]
    return found
