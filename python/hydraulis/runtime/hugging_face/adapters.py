"""Writes the adapters of a checkpoint as a PEFT adapter folder, or adds them to the base parameters."""

import json
from pathlib import Path

from torch import Tensor

from hydraulis.config.lora import Adapters
from hydraulis.files import read_regular
from hydraulis.model.parameters import adapter_of
from hydraulis.runtime.checkpoint.reader import CheckpointReader
from hydraulis.runtime.checkpoint.saver import CHECKPOINT_CONFIG
from hydraulis.runtime.checkpoint.shard import write_tensors
from hydraulis.runtime.state.parameters import ModelParameters
from hydraulis.text.documents import parse_json

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"


def whole(reader: CheckpointReader, parameters: ModelParameters, name: str) -> Tensor:
    """Read a whole parameter, in the type of the master parameters."""
    values = reader.read(name, 0, parameters.shapes[name].numel())
    return parameters.view(values, name)


def merged(reader: CheckpointReader, parameters: ModelParameters, name: str) -> Tensor:
    """Read a whole parameter, and add its adapter if it has one: `W + scaling B A`."""
    value, adapter = whole(reader, parameters, name), adapter_of(name, parameters.config)
    adapters = parameters.config.adapters
    if adapter is None or adapters is None:
        return value
    a, b = (whole(reader, parameters, matrix) for matrix in adapter)
    return value + adapters.scaling * (b @ a)


def write_adapters(
    folder: Path,
    adapters: Adapters,
    tensors: dict[str, Tensor],
    base: str | None,
) -> None:
    """Write the two files of an adapter folder.

    Args:
        folder: Folder of the files.
        adapters: Shape of the adapters.
        tensors: Matrices of the adapters by their names in transformers.
        base: Folder of the base model; None if it is unknown.
    """
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": adapters.rank,
        "lora_alpha": adapters.alpha,
        "lora_dropout": 0.0,
        "target_modules": list(adapters.targets),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    named = {f"base_model.model.{name}": value for name, value in tensors.items()}
    write_tensors(folder / ADAPTER_WEIGHTS, named, {"format": "pt"})


def base_folder(checkpoint: Path) -> str | None:
    """Return the folder of the model that a checkpoint's run started from; None if it is unknown."""
    try:
        config = parse_json(read_regular(checkpoint / CHECKPOINT_CONFIG).decode())
        folder = config["checkpoint"]["weights"]
    except (OSError, ValueError, KeyError, TypeError):
        # The file is for human readers, who may have removed it.
        return None
    return folder if type(folder) is str and folder else None
