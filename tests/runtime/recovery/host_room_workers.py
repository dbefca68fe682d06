"""Functions that the tests of host memory next to copies run on ranks."""

import dataclasses

import pytest
import torch.distributed as dist

from hydraulis import Cluster
from hydraulis.config.run import RunConfig
from hydraulis.planner.profile_document import with_host_memory
from hydraulis.runtime.recovery import host_room
from hydraulis.runtime.recovery.host_room import with_room_for_copies
from profiles import made_up_profile
from runtime.tiny import run_config


def with_copies(folder: str) -> RunConfig:
    config = run_config(1, ["1x<1>"])
    return dataclasses.replace(
        config, checkpoint=dataclasses.replace(config.checkpoint, memory_folder=folder)
    )


def host_memory_of_plans(folder: str, of_rank: list[int], stated: int) -> tuple[int | None, list[str]]:
    notes: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_room, "node_bytes", lambda: of_rank[dist.get_rank()])
        profile = with_host_memory(made_up_profile({"<1>": 64}), stated)
        found = with_room_for_copies(profile, with_copies(folder), Cluster(2, 2), notes.append)
    return found.host_memory_bytes, notes
