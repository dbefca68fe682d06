"""Workers of test_stage.py."""

import numpy as np
import torch.distributed as dist

from hydraulis import Scheme
from hydraulis._core import Position
from runtime.tiny import make_worker


def stages_are_kept() -> tuple[bool, bool, tuple[int, int]]:
    worker = make_worker(["1x<tp2>", "2x<1>"])
    worker.groups.ensure([range(2)])
    place, same_place = (Position.all(Scheme("<tp2>"))[dist.get_rank()] for _ in range(2))
    other_place = Position.all(Scheme("<1>"))[0]
    stage = worker.stage(place, None)
    batch = stage.collate([np.zeros(11, dtype=np.uint8)])
    kept = worker.stage(same_place, None) is stage
    worker.fit_local_shard_alone(other_place.scheme)
    return kept, worker.stage(other_place, None) is not stage, stage.hidden_shape(batch)


def context_stages() -> tuple[bool, list[tuple[int, ...]], int]:
    """Build a stage of each kind at one position; give what each holds of 11 tokens."""
    worker = make_worker(["1x<cp2>"])
    place = Position.all(Scheme("<cp2>"))[dist.get_rank()]
    worker.ensure_groups(Position.all(Scheme("<cp2>")))
    ulysses, ring = worker.stage(place, "ulysses"), worker.stage(place, "ring")
    batches = [stage.collate([np.arange(11, dtype=np.uint8)]) for stage in (ulysses, ring)]
    kept = worker.stage(place, "ring") is ring is not ulysses
    return kept, [tuple(batch.token_t.tolist()) for batch in batches], ulysses.hidden_shape(batches[0])[0]
