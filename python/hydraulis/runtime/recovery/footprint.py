"""The host memory and the messages that copies of the state take, from a run's configuration."""

from dataclasses import dataclass

import torch

from hydraulis._core import Cluster
from hydraulis.config.run import RunConfig
from hydraulis.model.tensors import wide_dtype
from hydraulis.runtime.recovery.keeper import COPIES_AT_ONCE
from hydraulis.runtime.recovery.twins import has_twins
from hydraulis.runtime.state.parameters import ModelParameters


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of one node, the mean over all nodes.

    Attributes:
        files: Most bytes of the files in `checkpoint.memory_folder`.
        buffers: Further bytes of host memory while a copy is sent and written.
        sent: Bytes that the node sends to the next one, and receives, with each copy; 0 without twins.
    """

    files: int
    buffers: int
    sent: int

    @classmethod
    def of(cls, config: RunConfig, cluster: Cluster) -> "Footprint":
        """Count the bytes of a run on a cluster."""
        narrow: torch.dtype = getattr(torch, config.train.dtype)
        parameters = ModelParameters.from_config(config.model, config.train.frozen)
        nodes = max(1, cluster.gpus // cluster.gpus_per_node)
        trained, frozen = (-(-parameters.num_elements(trained=one) // nodes) for one in (True, False))
        # Master parameters and moments change in each step; frozen parameters are copied once.
        changed = wide_dtype(narrow).itemsize * (1 + len(config.optimizer.moments)) * trained
        copies = 2 if has_twins(cluster) else 1
        return cls(
            files=copies * (COPIES_AT_ONCE * changed + narrow.itemsize * frozen),
            buffers=copies * changed,
            sent=(copies - 1) * changed,
        )
