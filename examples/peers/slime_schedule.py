"""slime: `python examples/peers/slime_schedule.py`, the schedule of one rollout batch for four ranks.

slime is not on PyPI. In its checkout, `slime.utils.dp_schedule.build_dp_schedule = make_dp_schedule(cost)`
before the trainer starts; `tests/batching/adapters/test_slime_schedule.py` checks the schedule's invariants.
"""

from types import SimpleNamespace

import numpy as np

from hydraulis.batching import SequenceCost
from hydraulis.batching.adapters.slime_schedule import make_dp_schedule

RANKS, ANSWERS, PROMPTS = 4, 8, 64
cost = SequenceCost(24_576, 1)
lengths = np.clip(np.random.default_rng(0).lognormal(7, 1, ANSWERS * PROMPTS), 1, 16_384).astype(int)
build_dp_schedule = make_dp_schedule(cost)
# The arguments that slime's trainer passes.
partitions, micro_batches, counts, sizes = build_dp_schedule(
    SimpleNamespace(use_dynamic_batch_size=True, max_tokens_per_gpu=16_384),
    {"dp_size": RANKS, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1},
    lengths.tolist(),
    global_batch_size=PROMPTS // 2,
    rollout_indices=np.repeat(np.arange(PROMPTS), ANSWERS).tolist(),
)
times = np.array(
    [
        [cost.times(lengths[own])[part].sum() for part in parts]
        for own, parts in zip(map(np.array, partitions), micro_batches, strict=True)
    ]
)
print(f"{len(counts)} steps of {sizes} rollouts in {counts} micro-batches of each rank")
print(f"{times.max(0).sum() * RANKS / times.sum():.6f} of the mean")
