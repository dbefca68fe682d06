"""Writes the master parameters of a checkpoint as a Hugging Face model folder or as PEFT adapters."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from safetensors import SafetensorError
from torch import Tensor

from hydraulis.config.hugging_face.read import (
    MODEL_CONFIG,
    POSITIONS,
    from_hugging_face,
    max_positions,
    read_fields,
)
from hydraulis.config.hugging_face.write import to_hugging_face
from hydraulis.errors import HydraulisError, InvalidInputError
from hydraulis.model.parameters import checkpoint_name, is_adapter
from hydraulis.runtime.checkpoint.manifest import Manifest
from hydraulis.runtime.checkpoint.reader import CheckpointReader, read_manifest, verify_shards
from hydraulis.runtime.checkpoint.shard import write_tensors
from hydraulis.runtime.hugging_face.adapters import base_folder, merged, write_adapters
from hydraulis.runtime.hugging_face.files import carried_files, carried_folder, check_output
from hydraulis.runtime.hugging_face.weights import INDEX, SINGLE
from hydraulis.runtime.state.parameters import ModelParameters

SHARD_BYTES = 5_000_000_000


def export(
    checkpoint: Path,
    output: Path,
    dtype: torch.dtype,
    shard_bytes: int = SHARD_BYTES,
    progress: Callable[[float], None] = lambda _: None,
    *,
    is_merged: bool = False,
) -> None:
    """Write a model folder that transformers loads; it appears under its name when it is complete.

    The folder contains config.json, the parameters, and the tokenizer files that the run started with. Only
    one shard at a time is in memory. Of a run with adapters the folder contains the adapters alone, as PEFT
    loads them, unless they are merged into the base model.

    Args:
        checkpoint: Folder of a complete checkpoint.
        output: Folder to create.
        dtype: Type of the exported parameters.
        shard_bytes: Maximum bytes of a file, unless it has a single larger tensor.
        progress: Callback that receives the share of the elements read so far, from 0 to 1.
        is_merged: Whether adapters are added to the parameters of the base model.

    Raises:
        InvalidInputError: The folder exists or cannot be created (code `file_unwritable`), or the model
            belongs to no family of transformers (`model_unsupported`).
        HydraulisError: The checkpoint is damaged (code `checkpoint_damaged`), or the folder cannot be written
            (`file_unwritable`).
    """
    manifest = read_manifest(checkpoint)
    verify_shards(checkpoint, manifest, range(manifest.world_size))
    carried = carried_folder(checkpoint)
    adapters = None if is_merged else manifest.model.adapters
    with _made_whole(output) as folder, CheckpointReader(checkpoint, manifest) as reader:
        for file in carried_files(carried):
            shutil.copyfile(file, folder / file.name)
        parameters = _parameters(manifest, reader, dtype, progress, only_adapters=adapters is not None)
        if adapters is not None:
            write_adapters(folder, adapters, dict(parameters), base_folder(checkpoint))
            return
        config = _config(manifest, carried) | {"dtype": str(dtype).removeprefix("torch.")}
        (folder / MODEL_CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        _write_parameters(folder, parameters, shard_bytes)


def _config(manifest: Manifest, carried: Path) -> dict[str, Any]:
    """Return the model's original config.json if it still describes the model, otherwise a new one."""
    path, longest = carried / MODEL_CONFIG, manifest.data.max_tokens
    if path.is_file():
        given = dict(read_fields(path))
        if (max_positions(given) or longest) < longest:
            given[POSITIONS] = longest
        # A RoPE scaling may depend on these positions; then the edited file describes another model, and a
        # new file is written.
        if from_hugging_face(given) == manifest.model.base:
            # The type's old key would contradict the written key `dtype`.
            return {name: value for name, value in given.items() if name != "torch_dtype"}
    return to_hugging_face(manifest.model.base, longest)


def _parameters(
    manifest: Manifest,
    reader: CheckpointReader,
    dtype: torch.dtype,
    progress: Callable[[float], None],
    *,
    only_adapters: bool,
) -> Iterator[tuple[str, Tensor]]:
    """Yield the matrices of the adapters, or every parameter with its adapter, by transformers' names."""
    parameters = ModelParameters.from_config(manifest.model)
    names = [record.name for record in manifest.parameters if is_adapter(record.name) == only_adapters]
    total, done = sum(parameters.shapes[name].numel() for name in names), 0
    for name in names:
        progress(done / total)
        done += parameters.shapes[name].numel()
        yield checkpoint_name(name), _converted(merged(reader, parameters, name), dtype, name)


def _converted(value: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    """Convert a parameter, and refuse a type that ends below its values."""
    converted = value.to(dtype).contiguous()
    largest = torch.finfo(dtype).max
    # NaN and infinity of the checkpoint stay as they are.
    if bool((converted.isinf() & value.isfinite()).any()):
        message = (
            f"parameter {name} has values beyond {largest:,.0f}, the largest of {dtype}; export with --dtype "
            "bfloat16 or float32"
        )
        raise InvalidInputError(message, code="argument_invalid")
    return converted


def _write_parameters(folder: Path, parameters: Iterator[tuple[str, Tensor]], shard_bytes: int) -> None:
    shards: list[list[str]] = []
    total = 0
    for number, tensors in enumerate(_shards(parameters, shard_bytes)):
        # The final names contain the number of shards, so files are renamed at the end.
        write_tensors(folder / str(number), tensors, {"format": "pt"})
        shards.append(list(tensors))
        total += sum(value.nbytes for value in tensors.values())
    if len(shards) == 1:
        (folder / "0").rename(folder / SINGLE)
        return
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards):
        file = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        (folder / str(number)).rename(folder / file)
        weight_map |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _shards(parameters: Iterator[tuple[str, Tensor]], shard_bytes: int) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    size = 0
    for name, value in parameters:
        if shard and size + value.nbytes > shard_bytes:
            yield shard
            shard, size = {}, 0
        shard[name] = value
        size += value.nbytes
    yield shard


@contextmanager
def _made_whole(output: Path) -> Iterator[Path]:
    """Yield a temporary folder; rename it to `output` on success, and remove it on an error."""
    check_output(output)
    # Another export to the same folder has a temporary folder of its own.
    unfinished = output.with_name(f".{output.name}.{uuid4().hex}.unfinished")
    try:
        unfinished.mkdir(parents=True)
        yield unfinished
        unfinished.rename(output)
    except (OSError, SafetensorError) as error:
        message = f"output {output} cannot be written: {error}; make room, or name another folder"
        raise HydraulisError(message, code="file_unwritable") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
