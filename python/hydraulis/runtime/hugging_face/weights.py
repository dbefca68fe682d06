"""Reads master parameters from the safetensors of a Hugging Face model folder.

A rank reads only the elements of its optimizer shard: the shard's rows of a tensor that tensor parallelism
splits by rows, and the shard's columns of a tensor that it splits by columns.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hydraulis.errors import InvalidInputError
from hydraulis.model.parameters import EMBEDDING_WEIGHT, HEAD_WEIGHT, checkpoint_name, row_of
from hydraulis.runtime.state.parameters import ModelParameters
from hydraulis.text.documents import parse_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLOATS = ("BF16", "F16", "F32", "F64")
# Tables in old checkpoints that config.json determines.
_DERIVED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
_COMPARED_ROWS = 4096


class HuggingFaceWeights:
    """Reads the tensors of a model folder, as `ParameterValues` of the whole model.

    Args:
        folder: Folder with `model.safetensors`, or with shards and their index.
        parameters: The model's parameters.

    Raises:
        InvalidInputError: A file is missing or damaged (code `weights_invalid`).
    """

    def __init__(self, folder: Path, parameters: ModelParameters) -> None:
        self._folder = folder
        self._parameters = parameters
        self._files: dict[str, Any] = {}
        self._open = ExitStack()
        self._file_of = self._index()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.clear()
        self._open.close()

    def check(self) -> None:
        """Check that the folder's tensors are the parameters of the model.

        Raises:
            InvalidInputError: A tensor is missing or unknown, or has another shape or a type other than
                `FLOATS` (code `weights_invalid`).
        """
        shapes = {checkpoint_name(name): list(shape) for name, shape in self._parameters.shapes.items()}
        given = {name for name in self._file_of if not _DERIVED.fullmatch(name)}
        for name in sorted(shapes.keys() - given):
            self._refuse(name, "it is missing", "the model has it by its config.json")
        if HEAD_WEIGHT not in shapes and HEAD_WEIGHT in given:
            self._check_tied()
            given.remove(HEAD_WEIGHT)
        for name in sorted(given - shapes.keys()):
            self._refuse(name, "it is there", "the model has no such parameter by its config.json")
        for name, shape in shapes.items():
            tensor = self._slice(name)
            if tensor.get_shape() != shape:
                self._refuse(name, f"it has shape {tensor.get_shape()}", f"the model's is {shape}")
            if tensor.get_dtype() not in FLOATS:
                limit = f"parameters are one of {', '.join(FLOATS)}"
                self._refuse(name, f"it is of type {tensor.get_dtype()}", limit)

    def read(self, name: str, start: int, end: int) -> Tensor:
        """Read the canonical elements from `start` to `end` of a parameter, in the file's type.

        Raises:
            InvalidInputError: The file cannot be read (code `weights_invalid`).
        """
        row = row_of(name, self._parameters.config)
        width = row.row_elements
        first, last = start // width, -(-end // width)
        lines = slice(first, last)
        rows = self._part(checkpoint_name(name), (slice(None), lines) if row.split_dim == 1 else lines)
        return self._parameters.canonical(rows, name)[start - first * width : end - first * width]

    def _check_tied(self) -> None:
        """Check that a stored head equals the embedding, since config.json ties them."""
        head, embedding = self._slice(HEAD_WEIGHT), self._slice(checkpoint_name(EMBEDDING_WEIGHT))
        same = head.get_shape() == embedding.get_shape() and all(
            torch.equal(self._part(HEAD_WEIGHT, rows), self._part(checkpoint_name(EMBEDDING_WEIGHT), rows))
            for rows in _in_pieces(head.get_shape()[0])
        )
        if not same:
            self._refuse(HEAD_WEIGHT, "it differs from the embedding", "config.json ties them")

    def _part(self, name: str, place: slice | tuple[slice, slice]) -> Tensor:
        """Read the slice `place` of a tensor."""
        try:
            part: Tensor = self._slice(name)[place]
        except (OSError, SafetensorError) as error:
            raise _unreadable(self._folder / self._file_of[name], str(error)) from error
        return part

    def _slice(self, name: str) -> Any:
        file = self._file_of[name]
        try:
            if file not in self._files:
                opened = safe_open(self._folder / file, framework="pt")
                self._files[file] = self._open.enter_context(opened)
            return self._files[file].get_slice(name)
        except (OSError, SafetensorError, ValueError) as error:
            # A name with half of a surrogate pair cannot be opened.
            raise _unreadable(self._folder / file, str(error)) from error

    def _index(self) -> dict[str, str]:
        """Return the file name of each tensor; a whole file counts before an index, as in transformers."""
        index = self._folder / INDEX
        is_sharded = index.exists() and not (self._folder / SINGLE).exists()
        try:
            if is_sharded:
                return _weight_map(index)
            with safe_open(self._folder / SINGLE, framework="pt") as file:
                return dict.fromkeys(file.keys(), SINGLE)
        except (OSError, SafetensorError, ValueError) as error:
            path = index if is_sharded else self._folder / SINGLE
            raise _unreadable(path, str(error)) from error

    def _refuse(self, name: str, what: str, limit: str) -> None:
        message = (
            f"tensor {name} of {self._folder}: {what}, and {limit}; give the folder of one whole "
            "model, saved with save_pretrained, and no other shape beside it in the section model"
        )
        raise InvalidInputError(message, code="weights_invalid")


def _in_pieces(rows: int) -> Iterator[slice]:
    """Split rows into pieces of `_COMPARED_ROWS`, which bounds the memory of the comparison."""
    return (slice(row, row + _COMPARED_ROWS) for row in range(0, rows, _COMPARED_ROWS))


def _weight_map(index: Path) -> dict[str, str]:
    document = parse_json(index.read_text(encoding="utf-8"))
    entries = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(entries, dict) or not all(type(file) is str for file in entries.values()):
        message = "it has no weight_map from tensors to files"
        raise ValueError(message)
    return entries


def _unreadable(path: Path, cause: str) -> InvalidInputError:
    message = (
        f"{path.absolute()} cannot be read: {cause}; give a folder with {SINGLE}, or shards and {INDEX}, "
        "or set model.hf_config to its config.json instead of model.path to draw random parameters"
    )
    return InvalidInputError(message, code="weights_invalid")
