"""Makes the manifests of a run."""

import json
from dataclasses import dataclass
from importlib.metadata import version

import torch

from hydraulis.config.run import RunConfig, to_dict
from hydraulis.runtime.checkpoint.manifest import Manifest, ParameterRecord, ShardRecord
from hydraulis.runtime.checkpoint.position import DataPosition


@dataclass(frozen=True, slots=True)
class Description:
    """What is the same in all checkpoints of a run, and where it stands in its data.

    Attributes:
        config: of the run.
        position: in its data.
        dtype: of master parameters and moments.
    """

    config: RunConfig
    position: DataPosition
    dtype: torch.dtype

    def config_json(self) -> str:
        """Give the effective configuration, for people."""
        return json.dumps(to_dict(self.config), indent=2) + "\n"

    def manifest(
        self, step: int, shards: tuple[ShardRecord, ...], parameters: tuple[ParameterRecord, ...]
    ) -> Manifest:
        """Make the manifest of a checkpoint after so many completed iterations."""
        return Manifest(
            version=version("hydraulis"),
            step=step,
            world_size=len(shards),
            dtype=str(self.dtype).removeprefix("torch."),
            model=self.config.model,
            data=self.position.cursor(step),
            shards=shards,
            parameters=parameters,
        )
