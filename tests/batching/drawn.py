"""Samplers drawn by the property tests."""

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from hydraulis.batching import BalancedBatchSampler, SequenceCost

CAP = 1000
COST = SequenceCost(24_576, 1)


def long_tail(n: int, seed: int = 0, longest: int = CAP) -> npt.NDArray[np.int32]:
    """Draw log-normal lengths up to `longest`."""
    drawn = np.random.default_rng(seed).lognormal(4.6, 1.2, n)
    return np.clip(drawn, 1, longest).astype(np.int32)


def sampler(lengths: Any, **changed: Any) -> BalancedBatchSampler:
    options: dict[str, Any] = {"cap_tokens": CAP, "cost": COST, "ranks": 2, "sequences_per_step": 16}
    if "tokens_per_step" in changed or "micro_batches" in changed:
        del options["sequences_per_step"]
    return BalancedBatchSampler(lengths, **(options | changed))


def ranks_of(lengths: Any, **options: Any) -> list[BalancedBatchSampler]:
    return [sampler(lengths, rank=rank, **options) for rank in range(options.get("ranks", 2))]


# What decides the steps and the micro-batches, in every combination.
OPTIONS = st.fixed_dictionaries(
    {
        "ranks": st.integers(1, 5),
        "barrier": st.sampled_from(["step", "micro_batch"]),
        "seed": st.integers(0, 2**70),
        "shuffle": st.booleans(),
        "allow_empty": st.just(True),
    }
).flatmap(
    lambda options: st.sampled_from(
        [
            options | {"sequences_per_step": 16},
            options | {"tokens_per_step": 2500},
            options | {"micro_batches": 1},
            options | {"micro_batches": 3},
            options | {"tokens_per_step": 1000, "micro_batches": 6},
        ]
    )
)
LENGTHS = st.lists(st.integers(1, CAP), min_size=1, max_size=150)
