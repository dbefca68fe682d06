"""What the ranks of the tests of Hugging Face models do: read a model each, and leave a checkpoint of it."""

from collections.abc import Sequence
from pathlib import Path

import torch

from hydraulis.config.hugging_face.read import from_hugging_face
from hydraulis.config.output import CheckpointConfig
from hydraulis.data.open import make_datasets
from hydraulis.runtime.agreement.step_sum import Votes
from hydraulis.runtime.checkpoint.description import Description
from hydraulis.runtime.checkpoint.folder import CheckpointFolder
from hydraulis.runtime.checkpoint.position import DataPosition
from hydraulis.runtime.checkpoint.saver import CheckpointSaver
from hydraulis.runtime.hugging_face.weights import HuggingFaceWeights
from hydraulis.runtime.state.optimizer_shard import OptimizerShard
from hydraulis.runtime.state.parameters import ModelParameters
from runtime.tiny import OPTIMIZER, made_up_corpus, run_config


def to_checkpoints(models: Sequence[Path]) -> None:
    """Read each model's parameters into shard shares, and write them as a checkpoint next to it."""
    for folder in models:
        parameters = ModelParameters.from_config(from_hugging_face(folder / "config.json"))
        with HuggingFaceWeights(folder, parameters) as weights:
            weights.check()
            shard = OptimizerShard(parameters, OPTIMIZER, torch.float32, weights, 1)
        config = run_config(1, ["2x<1>"])
        object.__setattr__(config, "model", parameters.config)
        description = Description(
            config,
            DataPosition(config, make_datasets(config.data, [[made_up_corpus(53)]]).train),
            torch.float32,
        )
        run = CheckpointFolder.of_run(folder / "run")
        CheckpointSaver(run, CheckpointConfig(), shard, description, Votes()).close(1)
