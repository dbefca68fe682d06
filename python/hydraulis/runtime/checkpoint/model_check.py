"""Compares the model of a checkpoint with that of the run that continues it."""

import dataclasses
from pathlib import Path

import torch

from hydraulis.config.lora import Adapters
from hydraulis.config.model import ModelConfig
from hydraulis.config.run import RunConfig
from hydraulis.errors import InvalidInputError
from hydraulis.model.parameters import checkpoint_name
from hydraulis.model.tensors import wide_dtype
from hydraulis.runtime.checkpoint.manifest import Manifest, torn
from hydraulis.runtime.state.parameters import ModelParameters
from hydraulis.text.values import as_toml

# It determines only the initial values, so a change does not conflict with a checkpoint.
_NOT_OF_THE_MODEL = "initializer_range"


def check_model(checkpoint: Path, manifest: Manifest, config: RunConfig) -> None:
    """Check that a checkpoint has the configured model.

    Args:
        checkpoint: Folder of the checkpoint.
        manifest: Manifest of the checkpoint.
        config: The run's configuration.

    Raises:
        InvalidInputError: The model, the type of its master parameters or the optimizer's state differs, or a
            trained parameter was frozen in the checkpoint (code `checkpoint_mismatch`), or a frozen name is
            no parameter (`config_value`).
        HydraulisError: The checkpoint's parameters do not match its model (code `checkpoint_damaged`).
    """
    model = config.model
    _check_adapters(checkpoint, manifest, config)
    for field in dataclasses.fields(ModelConfig):
        before, now = getattr(manifest.model, field.name), getattr(model, field.name)
        if field.name != _NOT_OF_THE_MODEL and before != now:
            _refuse(checkpoint, f"model.{field.name}", before, now)
    shapes = {name: tuple(shape) for name, shape in ModelParameters.from_config(model).shapes.items()}
    if {record.name: record.shape for record in manifest.parameters} != shapes:
        raise torn(str(checkpoint), "its parameters are not those of its model")
    wide = wide_dtype(getattr(torch, config.train.dtype))
    dtype = str(wide).removeprefix("torch.")
    if manifest.dtype != dtype:
        _refuse(checkpoint, "the type of master parameters (by train.dtype)", manifest.dtype, dtype)
    if manifest.moments != config.optimizer.moments:
        _refuse(
            checkpoint,
            "the optimizer's state (by optimizer.name)",
            manifest.moments,
            config.optimizer.moments,
        )
    _check_thawed(manifest, ModelParameters.from_config(model, config.train.frozen))


def _check_adapters(checkpoint: Path, manifest: Manifest, config: RunConfig) -> None:
    """Check that the adapters are those of the checkpoint, key by key of the section `lora`."""
    before, now = manifest.model.adapters, config.model.adapters
    for field in dataclasses.fields(Adapters):
        values = [None if one is None else getattr(one, field.name) for one in (before, now)]
        if values[0] != values[1]:
            _refuse(checkpoint, f"lora.{field.name}", *values)


def _check_thawed(manifest: Manifest, parameters: ModelParameters) -> None:
    """Check that every trained parameter has moments in the checkpoint."""
    were_trained = {record.name for record in manifest.parameters if record.trained}
    for name, trained in zip(parameters.names, parameters.trained, strict=True):
        if trained and name not in were_trained:
            message = (
                f"{checkpoint_name(name)} is trained and was frozen in the checkpoint, which has no "
                "optimizer state of it; keep it in train.frozen, or start a new run from an exported model"
            )
            raise InvalidInputError(message, code="checkpoint_mismatch")


def _refuse(checkpoint: Path, name: str, before: object, now: object) -> None:
    message = (
        f"checkpoint {checkpoint} has {name} = {as_toml(before)} and the run has {as_toml(now)}; "
        "set it back, or start without resuming"
    )
    raise InvalidInputError(message, code="checkpoint_mismatch")
