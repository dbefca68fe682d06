"""Builds the manifests of a run's checkpoints."""

import json
from dataclasses import dataclass
from importlib.metadata import version

import torch

from hydraulis.config.run import RunConfig, to_dict
from hydraulis.data.sampling.batch_group import BatchGroup
from hydraulis.runtime.checkpoint.manifest import Manifest, ParameterRecord, ShardRecord
from hydraulis.runtime.checkpoint.position import DataPosition


@dataclass(frozen=True, slots=True)
class Description:
    """Builds the manifest of each checkpoint from the run's configuration and data position.

    Attributes:
        config: The run's configuration.
        position: The run's position in its data.
        dtype: Type of the master parameters and moments; frozen parameters have `train.dtype`.
    """

    config: RunConfig
    position: DataPosition
    dtype: torch.dtype

    def config_json(self) -> str:
        """Return the effective configuration as indented JSON, for human readers."""
        return json.dumps(to_dict(self.config), indent=2) + "\n"

    def manifest(
        self,
        step: int,
        shards: tuple[ShardRecord, ...],
        parameters: tuple[ParameterRecord, ...],
        group: BatchGroup | None = None,
    ) -> Manifest:
        """Build the manifest of the checkpoint after `step` completed iterations, within a group or not."""
        return Manifest(
            version=version("hydraulis"),
            step=step,
            world_size=len(shards),
            dtype=str(self.dtype).removeprefix("torch."),
            frozen_dtype=self.config.train.dtype,
            model=self.config.model,
            data=self.position.cursor(step, group),
            shards=shards,
            parameters=parameters,
            moments=self.config.optimizer.moments,
        )
