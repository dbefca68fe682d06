"""The model's parameters as the core's layout sees them.

A parameter's *canonical order* is row-major with the dim that tensor parallelism splits moved to the front,
so that the slice of a tensor rank is an interval whatever the degree.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Self

import torch
from torch import Tensor

from hydraulis._core import LayerSplit, Parameter, ParameterTable, Scheme
from hydraulis.config.model import ModelConfig
from hydraulis.errors import InvalidInputError
from hydraulis.model.parameters import checkpoint_name, named_rows, row_of
from hydraulis.planner.model_shape import build_layer_split


@dataclass(frozen=True, slots=True, eq=False)
class ModelParameters:
    """Master parameters of a model, with their shapes and their places in the core's table.

    All of them, or either part where some are frozen: each part has a home, buffers and transfers of its own.

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
    trained: bool

    @classmethod
    def of(cls, config: ModelConfig, stage_layers: Sequence[Sequence[int]] = ()) -> Self:
        """List the parameters of the model that `config` describes, without allocating any.

        Args:
            config: of the model.
            stage_layers: as `train.stage_layers` states them.
        """
        return cls._of(config, _shapes_of(config), build_layer_split(config, stage_layers), trained=True)

    @classmethod
    def parted(
        cls, config: ModelConfig, frozen: Sequence[str], stage_layers: Sequence[Sequence[int]] = ()
    ) -> tuple[Self, Self | None]:
        """List the parameters that are trained, and those that are frozen; None if none is.

        Args:
            config: of the model.
            frozen: patterns of names as `model.safetensors` has them, such as `model.embed_tokens.*`; `*`
                stands for anything.
            stage_layers: as `train.stage_layers` states them; both parts are cut alike.

        Raises:
            InvalidInputError: a pattern names no parameter, or nothing is left to train (code
                `config_value`).
        """
        whole = cls.of(config, stage_layers)
        shapes, split = whole.shapes, whole.table.split
        names = {name for pattern in frozen for name in _matching(pattern, shapes)}
        if len(names) == len(shapes):
            message = (
                f"train.frozen = {list(frozen)} names every parameter: leave out the parameters to train"
            )
            raise InvalidInputError(message, code="config_value")
        kept = {name: shape for name, shape in shapes.items() if name not in names}
        rest = {name: shape for name, shape in shapes.items() if name in names}
        trained = cls._of(config, kept, split, trained=True)
        return trained, cls._of(config, rest, split, trained=False) if rest else None

    @classmethod
    def _of(
        cls, config: ModelConfig, shapes: Mapping[str, torch.Size], split: LayerSplit, *, trained: bool
    ) -> Self:
        entries = [_entry(name, config) for name in shapes]
        table = ParameterTable(entries, split)
        return cls(config, table, tuple(entry.name for entry in table.parameters), shapes, trained)

    @property
    def num_elements(self) -> int:
        """The elements of all of them."""
        return sum(shape.numel() for shape in self.shapes.values())

    def stage_elements(self, scheme: Scheme) -> list[int]:
        """Count the elements of each stage's blocks; those of tied embeddings are the first one's."""
        ends = list(accumulate(self.table.split.stage_layers(scheme)))
        elements = [0] * scheme.pp
        for parameter in self.table.parameters:
            stage = min(bisect_left(ends, parameter.blocks[0]), scheme.pp - 1)
            elements[stage] += parameter.rows * parameter.row_elements
        return elements

    def view(self, canonical: Tensor, name: str) -> Tensor:
        """View canonical elements, of all or some whole rows, as the parameter or that slice of it.

        The result shares memory with `canonical`, so that it may be a module's parameter inside a flat
        buffer; where the split dim is not the first, it is a transposed view.
        """
        dim = row_of(name, self.config).split_dim or 0
        shape = self.shapes[name]
        others = [size for index, size in enumerate(shape) if index != dim]
        return canonical.view(-1, *others).movedim(0, dim)

    def canonical(self, value: Tensor, name: str) -> Tensor:
        """Flatten a whole parameter into its canonical order."""
        return value.movedim(row_of(name, self.config).split_dim or 0, 0).reshape(-1)


def _shapes_of(config: ModelConfig) -> Mapping[str, torch.Size]:
    return {name: torch.Size(row.shape) for name, row in named_rows(config).items()}


def _matching(pattern: str, names: Iterable[str]) -> list[str]:
    matching = [name for name in names if fnmatchcase(checkpoint_name(name), pattern)]
    if not matching:
        message = (
            f"train.frozen: pattern {pattern!r} names no parameter of the model; write names as "
            "model.safetensors has them, such as 'model.layers.0.*' (a tied head is "
            "'model.embed_tokens.weight')"
        )
        raise InvalidInputError(message, code="config_value")
    return matching


def _entry(name: str, config: ModelConfig) -> Parameter:
    row = row_of(name, config)
    return Parameter(
        name,
        rows=row.rows,
        row_elements=row.row_elements,
        units=row.split_units,
        blocks=row.layer_groups(config.num_hidden_layers),
    )
