"""What a rank holds of the model, whatever the batch: the rest of its memory is for activations."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hydraulis._core import Cluster, Home, Scheme
from hydraulis.config.run import RunConfig
from hydraulis.model.tensors import wide_dtype
from hydraulis.runtime.state.buffers import largest_stage
from hydraulis.runtime.state.optimizer_shard import num_home_buffers
from hydraulis.runtime.state.parameters import ModelParameters


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """Bytes of one rank.

    Attributes:
        home: the largest share of master parameters, their gradients and moments.
        buffers: parameters and gradients of the largest stage of any scheme.
        scheme: that has this stage.
    """

    home: int
    buffers: int
    scheme: Scheme

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.home + self.buffers


def held_memory(config: RunConfig, schemes: Sequence[Scheme], cluster: Cluster) -> HeldMemory:
    """Count what a rank holds, as the runtime allocates it.

    Args:
        config: of the run.
        schemes: of its strategies, at least one.
        cluster: over whose ranks the home state is shared out.

    Raises:
        InvalidInputError: a scheme has more stages than the model has layers (code `scheme_model_mismatch`).
    """
    narrow: torch.dtype = getattr(torch, config.train.dtype)
    wide = wide_dtype(narrow).itemsize
    home = 0
    by_scheme = dict.fromkeys(schemes, 0)
    largest = 0
    for parameters in ModelParameters.parted(config.model, config.train.frozen, config.train.stage_layers):
        if parameters is None:
            continue
        layout = Home(parameters.table, cluster, schemes)
        share = max(sum(layout.shard_elements(parameters.table, rank)) for rank in range(cluster.gpus))
        home += share * wide * num_home_buffers(parameters)
        element = narrow.itemsize + (wide if parameters.trained else 0)
        stages = {scheme: largest_stage(parameters, scheme) * element for scheme in schemes}
        largest += max(stages.values())
        by_scheme = {scheme: by_scheme[scheme] + stages[scheme] for scheme in schemes}
    return HeldMemory(home, largest, max(schemes, key=lambda scheme: by_scheme[scheme]))
