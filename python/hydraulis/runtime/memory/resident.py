"""Resident memory of a rank, the most of any scheme: activations have the rest."""

from collections.abc import Sequence
from dataclasses import dataclass

from hydraulis._core import Cluster, OptimizerShards, Scheme
from hydraulis.config.run import RunConfig
from hydraulis.runtime.state.local_shard import StageSize, largest_stage
from hydraulis.runtime.state.parameters import ElementCount, ModelParameters
from hydraulis.runtime.state.places import buffer_places
from hydraulis.runtime.state.state_bytes import StateBytes


@dataclass(frozen=True, slots=True)
class ResidentMemory:
    """Resident bytes of one rank.

    Attributes:
        optimizer: Bytes of the largest optimizer shard.
        local: Bytes of the local shard: parameters and gradients of the largest stage of any scheme.
        scheme: Scheme with the largest local shard.
    """

    optimizer: int
    local: int
    scheme: Scheme

    @property
    def bytes(self) -> int:
        """All resident bytes."""
        return self.optimizer + self.local


def resident_memory(config: RunConfig, schemes: Sequence[Scheme], cluster: Cluster) -> ResidentMemory:
    """Count the resident bytes of a rank, as the runtime allocates them.

    Args:
        config: Configuration of the run.
        schemes: Schemes of its strategies, at least one.
        cluster: All ranks, among which the optimizer state is distributed.

    Raises:
        InvalidInputError: A scheme has more stages than the model has layers (code `scheme_model_mismatch`).
    """
    of_element = StateBytes.of_run(config)
    parameters = ModelParameters.from_config(config.model, config.train.frozen, config.train.stage_layers)
    layout = OptimizerShards(parameters.table, cluster, schemes)
    shards = [ElementCount(*layout.shard_elements(rank)) for rank in range(cluster.gpus)]
    sizes = {scheme: largest_stage(parameters, scheme) for scheme in schemes}

    def local(of: Sequence[Scheme], size: StageSize) -> int:
        places = buffer_places(parameters, of, config.train.sharding, **size._asdict())
        return of_element.local(places.parameters.elements, places.gradients.elements)

    largest = StageSize(*(max(column) for column in zip(*sizes.values(), strict=True)))
    return ResidentMemory(
        optimizer=max(map(of_element.optimizer, shards)),
        local=local(schemes, largest),
        scheme=max(sizes, key=lambda scheme: local([scheme], sizes[scheme])),
    )
