"""What the ranks of test_sound.py do."""

from pathlib import Path

import torch
import torch.distributed as dist

from hydraulis.errors import HydraulisError
from hydraulis.runtime.checkpoint.folder import CheckpointFolder
from hydraulis.runtime.checkpoint.reader import read_manifest
from runtime.checkpoint.checkpoint_workers import make_saver, make_shard


def save_until_damaged(folder: Path) -> tuple[str, str, list[int]]:
    """Write a checkpoint, damage one moment of rank 1, and write the next one; of two only one is kept."""
    shard = make_shard()
    saver = make_saver(folder, shard, keep=1)
    saver.close(1)
    if dist.get_rank() == 1:
        shard.optimizer.moments["exp_avg"][0] = torch.nan
    error = HydraulisError("", code="")
    try:
        saver.close(2)
    except HydraulisError as raised:
        error = raised
    steps = [read_manifest(path).step for path in CheckpointFolder(folder).complete()]
    return error.code, str(error), steps
