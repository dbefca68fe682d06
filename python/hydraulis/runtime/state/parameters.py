"""The model's parameters as the core's layout describes them, and the sources of their initial values.

A parameter's *canonical order* is row-major with the dim that tensor parallelism splits moved to the front,
so the slice of a tensor rank is an interval for every degree.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import accumulate, compress
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor

from hydraulis._core import Parameter, ParameterTable, Scheme
from hydraulis.config.model import ModelConfig
from hydraulis.errors import InvalidInputError
from hydraulis.model.init import draw_elements
from hydraulis.model.parameters import checkpoint_name, is_adapter, named_rows, row_of
from hydraulis.planner.model_shape import build_layer_split

# A check of a run asks for its parameters a dozen times, which takes 3 s each for 16,000 layers.
_MOST_MODELS = 4


class ElementCount(NamedTuple):
    """Number of elements of some parameters.

    Attributes:
        trained: Number of trained elements.
        frozen: Number of frozen elements.
    """

    trained: int
    frozen: int


@dataclass(frozen=True, slots=True, eq=False)
class ModelParameters:
    """Master parameters of a model, with their shapes and their places in the core's table.

    Attributes:
        config: The model's shape.
        table: The core's table in bucket order; slices name a parameter by its index in it.
        names: Names of the parameters, by index.
        trained: Whether each parameter is trained, by index; trained ones come first. A frozen parameter has
            neither gradient nor moments.
        layer_groups: Layer group in whose buckets each parameter is, by index: its first one.
        shapes: Shapes of the whole parameters, by name.
    """

    config: ModelConfig
    table: ParameterTable
    names: tuple[str, ...]
    trained: tuple[bool, ...]
    layer_groups: tuple[int, ...]
    shapes: Mapping[str, torch.Size]

    @classmethod
    def from_config(
        cls, config: ModelConfig, frozen: Sequence[str] = (), stage_layers: Sequence[Sequence[int]] = ()
    ) -> Self:
        """List the parameters of a model without allocating any; equal arguments give the same object.

        Args:
            config: The model's shape; with adapters, its other parameters are frozen.
            frozen: Patterns of frozen parameters' names in `model.safetensors`, such as
                `model.embed_tokens.*`; `*` stands for anything.
            stage_layers: Layers of each stage, as in `train.stage_layers`.

        Raises:
            InvalidInputError: A pattern names no parameter, or the patterns name every trained parameter
                (code `config_value`).
        """
        return cls._listed(config, tuple(frozen), tuple(map(tuple, stage_layers)))

    @classmethod
    @lru_cache(_MOST_MODELS)
    def _listed(
        cls, config: ModelConfig, frozen: Sequence[str], stage_layers: Sequence[Sequence[int]]
    ) -> Self:
        rows = named_rows(config)
        trained_names = {name for name, row in rows.items() if row.trained}
        trained_names -= {name for pattern in frozen for name in _matching(pattern, rows)}
        if not trained_names:
            every = "parameter" if config.adapters is None else "adapter"
            message = f"train.frozen = {list(frozen)} names every {every}: leave out the {every}s to train"
            raise InvalidInputError(message, code="config_value")
        entries = [_entry(name, config, trained=name in trained_names) for name in rows]
        table = ParameterTable(entries, build_layer_split(config, stage_layers))
        return cls(
            config=config,
            table=table,
            names=tuple(entry.name for entry in table.parameters),
            trained=tuple(entry.trained for entry in table.parameters),
            layer_groups=tuple(entry.layer_groups[0] for entry in table.parameters),
            shapes={name: torch.Size(row.shape) for name, row in rows.items()},
        )

    @property
    def num_layer_groups(self) -> int:
        """The number of layer groups: the embedding, each layer and the head."""
        return self.config.num_hidden_layers + 2

    @property
    def first_trained_layer_group(self) -> int:
        """The first layer group that has a trained parameter; trained parameters stand first in the table."""
        return self.layer_groups[0]

    def is_trained(self, name: str) -> bool:
        """Whether the parameter of this name is trained."""
        return self.trained[self.names.index(name)]

    @property
    def elements(self) -> ElementCount:
        """The number of elements of all parameters."""
        sizes = [self.shapes[name].numel() for name in self.names]
        trained = sum(compress(sizes, self.trained))
        return ElementCount(trained, sum(sizes) - trained)

    def stage_elements(self, scheme: Scheme, *, trained: bool) -> list[int]:
        """Count the trained or the frozen elements of each stage; tied embeddings count for the first."""
        ends = list(accumulate(self.table.split.stage_layers(scheme)))
        elements = [0] * scheme.pp
        for parameter in self.table.parameters:
            if parameter.trained == trained:
                stage = min(bisect_left(ends, parameter.layer_groups[0]), scheme.pp - 1)
                elements[stage] += parameter.rows * parameter.row_elements
        return elements

    def view(self, canonical: Tensor, name: str) -> Tensor:
        """View canonical elements of whole rows as the parameter, or as a slice of it.

        The result shares memory with `canonical`, so it may be a module's parameter inside a flat buffer. It
        is a transposed view where the split dim is not the first.
        """
        dim = row_of(name, self.config).split_dim or 0
        shape = self.shapes[name]
        others = [size for index, size in enumerate(shape) if index != dim]
        return canonical.view(-1, *others).movedim(0, dim)

    def canonical(self, value: Tensor, name: str) -> Tensor:
        """Flatten a whole parameter into its canonical order."""
        return value.movedim(row_of(name, self.config).split_dim or 0, 0).reshape(-1)


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


def _entry(name: str, config: ModelConfig, *, trained: bool) -> Parameter:
    row = row_of(name, config)
    return Parameter(
        name,
        rows=row.rows,
        row_elements=row.row_elements,
        units=row.split_units,
        layer_groups=row.layer_groups(config.num_hidden_layers),
        trained=trained,
    )


class ParameterValues(Protocol):
    """Values of every parameter of a model, of which a rank reads its optimizer shard only."""

    def read(self, name: str, start: int, end: int) -> Tensor:
        """Return the canonical elements from `start` to `end` of a parameter, flat, in any float dtype."""


@dataclass(frozen=True, slots=True)
class InitialValues:
    """Values drawn by a seed, the same for any number of ranks.

    Attributes:
        parameters: The model's parameters.
        seed: Seed of the run.
        dtype: Dtype of the values.
    """

    parameters: ModelParameters
    seed: int
    dtype: torch.dtype

    def read(self, name: str, start: int, end: int) -> Tensor:
        """Draw the blocks of the parameter that have these elements, and return the elements."""
        return draw_elements(name, start, end, self.parameters.config, self.seed).to(self.dtype)


@dataclass(frozen=True, slots=True)
class AdaptedValues:
    """Values of a model with adapters.

    Attributes:
        base: Values of the base model.
        adapters: Values of the adapters.
    """

    base: ParameterValues
    adapters: ParameterValues

    def read(self, name: str, start: int, end: int) -> Tensor:
        """Read from the source that has the parameter."""
        source = self.adapters if is_adapter(name) else self.base
        return source.read(name, start, end)
