"""The model's parameters as the core's layout sees them.

A parameter's *canonical order* is row-major with the dim that tensor parallelism splits moved to the front,
so that the slice of a tensor rank is an interval whatever the degree.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from hydraulis._core import Parameter, ParameterTable
from hydraulis.config.model import ModelConfig
from hydraulis.model.decoder import EMBEDDING_WEIGHT, Decoder
from hydraulis.parallel.tensor import split_dim, split_units


@dataclass(frozen=True, slots=True, eq=False)
class ModelParameters:
    """Every master parameter of a model, with its shape and its place in the core's table.

    Attributes:
        config: of the model.
        table: the parameters in bucket order; slices name them by their index in it.
        names: by that index.
        shapes: of the whole parameters, by name.
        trained: whether they are; of frozen ones there is neither gradient nor optimizer state.
    """

    config: ModelConfig
    table: ParameterTable
    names: tuple[str, ...]
    shapes: Mapping[str, torch.Size]
    trained: bool = True

    @classmethod
    def of(cls, config: ModelConfig) -> Self:
        """List the parameters of the model that `config` describes, without allocating any."""
        with torch.device("meta"):
            model = Decoder(config)
        shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        entries = [_entry(name, shape, config) for name, shape in shapes.items()]
        table = ParameterTable(entries, config.num_hidden_layers)
        return cls(config, table, tuple(entry.name for entry in table.parameters), shapes)

    def view(self, canonical: Tensor, name: str) -> Tensor:
        """View canonical elements, of all or some whole rows, as the parameter or that slice of it.

        The result shares memory with `canonical`, so that it may be a module's parameter inside a flat
        buffer; where the split dim is not the first, it is a transposed view.
        """
        dim = split_dim(name) or 0
        shape = self.shapes[name]
        others = [size for index, size in enumerate(shape) if index != dim]
        return canonical.view(-1, *others).movedim(0, dim)

    def canonical(self, value: Tensor, name: str) -> Tensor:
        """Flatten a whole parameter into its canonical order."""
        return value.movedim(split_dim(name) or 0, 0).reshape(-1)


def _entry(name: str, shape: torch.Size, config: ModelConfig) -> Parameter:
    dim = split_dim(name)
    rows = shape[dim or 0]
    return Parameter(
        name,
        rows=rows,
        row_elements=shape.numel() // rows,
        units=split_units(name, rows, config),
        blocks=_blocks(name, config),
    )


def _blocks(name: str, config: ModelConfig) -> list[int]:
    """Number the blocks that use a parameter: 0 the embedding, 1 to L the layers, L + 1 the head."""
    head = config.num_hidden_layers + 1
    if name.startswith("layers."):
        return [int(name.split(".")[1]) + 1]
    if name == EMBEDDING_WEIGHT:
        return [0, head] if config.tie_word_embeddings else [0]
    return [head]
