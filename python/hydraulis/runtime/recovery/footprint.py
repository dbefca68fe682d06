"""The host memory and the messages that copies of the state take, from a run's configuration."""

from dataclasses import dataclass

import torch

from hydraulis._core import Cluster
from hydraulis.config.run import RunConfig
from hydraulis.model.tensors import wide_dtype
from hydraulis.runtime.recovery.keeper import COPIES_AT_ONCE
from hydraulis.runtime.recovery.twins import has_twins
from hydraulis.runtime.state.optimizer_shard import ElementCount, host_copy_bytes
from hydraulis.runtime.state.parameters import ModelParameters

# A checkpoint's snapshot and a copy of the state may be in host memory at the same time.
_HOST_COPIES = 2


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of one node, the mean over all nodes.

    Attributes:
        files: Most bytes of the files in `checkpoint.memory_folder`.
        first: Bytes of the files with the first copy alone.
        buffers: Most further bytes of host memory: the pinned memory of a copy and of a checkpoint's
            snapshot, as torch rounds it up on CUDA (see `HostCopy`), and the twins that are received. Each
            rank is counted with an even share of the elements.
        sent: Bytes that the node sends to the next one, and receives, with each copy; 0 without twins.
    """

    files: int
    first: int
    buffers: int
    sent: int

    @classmethod
    def of(cls, config: RunConfig, cluster: Cluster) -> "Footprint":
        """Count the bytes of a run on a cluster."""
        narrow: torch.dtype = getattr(torch, config.train.dtype)
        parameters = ModelParameters.from_config(config.model, config.train.frozen)
        nodes = max(1, cluster.gpus // cluster.gpus_per_node)
        totals = [parameters.num_elements(trained=one) for one in (True, False)]
        moments = len(config.optimizer.moments)
        trained, frozen = (-(-total // nodes) for total in totals)
        # Master parameters and moments change in each step; frozen parameters are copied once.
        changed = wide_dtype(narrow).itemsize * (1 + moments) * trained
        unchanged = narrow.itemsize * frozen
        copies = 2 if has_twins(cluster) else 1
        of_rank = ElementCount(*(-(-total // cluster.gpus) for total in totals))
        pinned = min(cluster.gpus, cluster.gpus_per_node) * host_copy_bytes(of_rank, narrow, moments)
        return cls(
            files=copies * (COPIES_AT_ONCE * changed + unchanged),
            first=copies * (changed + unchanged),
            buffers=_HOST_COPIES * pinned + (copies - 1) * (changed + unchanged),
            sent=(copies - 1) * changed,
        )
