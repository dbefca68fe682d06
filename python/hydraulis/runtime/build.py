"""Builds the worker of a run: its parameters come from the seed, a model's folder, or a checkpoint."""

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from hydraulis._core import OptimizerShards, Scheme
from hydraulis.config.run import RunConfig
from hydraulis.errors import InvalidInputError
from hydraulis.model.tensors import wide_dtype
from hydraulis.runtime.checkpoint.resume import ResumedRun, restore_moments
from hydraulis.runtime.hugging_face.weights import HuggingFaceWeights
from hydraulis.runtime.memory.out_of_memory import naming_full_device
from hydraulis.runtime.ranks.device import choose_device
from hydraulis.runtime.ranks.distributed import run_cluster
from hydraulis.runtime.ranks.every_rank import on_every_rank
from hydraulis.runtime.ranks.rank_zero import on_rank_zero
from hydraulis.runtime.state.parameters import AdaptedValues, InitialValues, ModelParameters, ParameterValues
from hydraulis.runtime.worker import Worker


def build_worker(config: RunConfig, schemes: Sequence[Scheme], resumed: ResumedRun | None) -> Worker:
    """Build the worker of this rank. Collective.

    Args:
        config: Configuration of the run.
        schemes: Every scheme that a plan of the run may use.
        resumed: Checked run to resume; None to start from the seed or from a model.

    Raises:
        HydraulisError: A scheme does not fit the model, or the source of the parameters is incomplete; on
            every rank. The device does not hold the rank's parameters and optimizer shard (code
            `out_of_device_memory`); on this rank alone.
    """
    if resumed is None:
        return _start(config, schemes)
    parameters = ModelParameters.from_config(config.model, config.train.frozen, config.train.stage_layers)
    cluster = run_cluster()
    layout = OptimizerShards(parameters.table, cluster, schemes)
    with resumed.values(parameters, layout) as values:
        worker = _build(config, schemes, values)
        on_every_rank(lambda: restore_moments(values, worker.optimizer_shard))
    worker.optimizer_shard.optimizer.resume(resumed.manifest.step)
    return worker


def check_base(config: RunConfig) -> None:
    """Check that adapters have a base model.

    Raises:
        InvalidInputError: The base model would be drawn from the seed (code `config_value`).
    """
    if config.model.adapters is not None and not config.checkpoint.weights:
        message = (
            f"lora.rank = {config.lora.rank} adapts a trained model, and checkpoint.weights is empty; set "
            "model.path to a model's folder (hydraulis export writes one of a run), or lora.rank to 0"
        )
        raise InvalidInputError(message, code="config_value")


def _start(config: RunConfig, schemes: Sequence[Scheme]) -> Worker:
    check_base(config)
    if not config.checkpoint.weights:
        return _build(config, schemes, None)
    folder, base = Path(config.checkpoint.weights), ModelParameters.from_config(config.model.base)
    with on_every_rank(lambda: HuggingFaceWeights(folder, base)) as weights:
        on_rank_zero(weights.check)
        return _build(config, schemes, _with_adapters(weights, config))


def _with_adapters(weights: HuggingFaceWeights, config: RunConfig) -> ParameterValues:
    if config.model.adapters is None:
        return weights
    wide = wide_dtype(getattr(torch, config.train.dtype))
    drawn = InitialValues(ModelParameters.from_config(config.model), config.train.seed, wide)
    return AdaptedValues(weights, drawn)


def _build(config: RunConfig, schemes: Sequence[Scheme], values: ParameterValues | None) -> Worker:
    with naming_full_device(choose_device(config.train.device), dist.get_rank()):
        return Worker(config.model, config.optimizer, config.train, schemes=schemes, values=values)
