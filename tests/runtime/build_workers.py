"""Workers of test_build.py."""

import torch.distributed as dist
from torch import Tensor, ones

from hydraulis import Strategy
from hydraulis.errors import HydraulisError
from hydraulis.runtime.worker import Worker
from runtime.tiny import run_config


class TornOnTheLastRank:
    """Values that one rank alone cannot read."""

    def read(self, _name: str, start: int, end: int) -> Tensor:
        if dist.get_rank() == dist.get_world_size() - 1:
            message = "a shard is not whole"
            raise HydraulisError(message, code="checkpoint_damaged")
        return ones(end - start)


def read_torn_values() -> str:
    config = run_config(1, ["2x<1>"])
    schemes = Strategy("2x<1>").schemes
    try:
        Worker(config.model, config.optimizer, config.train, schemes=schemes, values=TornOnTheLastRank())
    except HydraulisError as error:
        return error.code
    return ""
