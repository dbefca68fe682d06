"""What the ranks of test_stage.py do."""

import numpy as np
import torch.distributed as dist

from hydraulis import Scheme
from hydraulis._core import Position
from hydraulis.data.collate import collate
from runtime.tiny import make_worker


def stages_are_kept() -> tuple[bool, bool, tuple[int, int]]:
    worker = make_worker(["1x<tp2>", "2x<1>"])
    worker.groups.ensure([range(2)])
    place = Position(Scheme("<tp2>"), stage=0, tensor_rank=dist.get_rank())
    same_place = Position(Scheme("<tp2>"), stage=0, tensor_rank=dist.get_rank())
    other_place = Position(Scheme("<1>"), stage=0, tensor_rank=0)
    stage = worker.stage(place)
    batch = collate([np.zeros(11, dtype=np.uint8)], multiple=stage.padding_multiple)
    kept = worker.stage(same_place) is stage
    return kept, worker.stage(other_place) is not stage, stage.hidden_shape(batch)
