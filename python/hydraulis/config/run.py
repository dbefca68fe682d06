"""The configuration of a training run: one TOML file, one table per section, one dataclass per table.

Each section stands in the file of its name. What a section accepts is what its dataclass declares; unknown
keys are errors. Values are checked when a section is constructed, so a configuration that exists is a valid
one. Knobs of the planner's algorithms are not here: the core owns those.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_type_hints

from hydraulis._core import LayerSplit
from hydraulis.config.check import check_at_least, check_at_most
from hydraulis.config.data import DataConfig
from hydraulis.config.hugging_face.source import SOURCES, resolve_model
from hydraulis.config.layered.layers import OVERRIDE, PRESETS, Layers, read_preset, read_tables
from hydraulis.config.layered.override import read_override
from hydraulis.config.layered.table import SectionHints, from_table, refuse_unknown_keys
from hydraulis.config.model import ModelConfig
from hydraulis.config.optimizer import OptimizerConfig
from hydraulis.config.output import CheckpointConfig, OutputConfig
from hydraulis.config.planner import PlannerConfig
from hydraulis.config.train import TrainConfig
from hydraulis.errors import InvalidInputError

# Without files tokens are bytes, so the embedding must have a row for each.
NUM_BYTE_TOKENS = 256
_PRESET = "preset"
_WINDOW = "model.sliding_window, up to which attention to whole sequences is the same"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """A whole training run, one attribute per section of its file."""

    model: ModelConfig
    data: DataConfig
    train: TrainConfig
    optimizer: OptimizerConfig
    planner: PlannerConfig
    checkpoint: CheckpointConfig
    output: OutputConfig

    def __post_init__(self) -> None:
        # Files may hold tokens of any tokenizer: those are compared with the model when they are read.
        if not self.data.sources:
            check_at_least("model.vocab_size", self.model.vocab_size, NUM_BYTE_TOKENS)
        if self.model.sliding_window is not None:
            check_at_most("data.max_tokens", self.data.max_tokens, self.model.sliding_window, _WINDOW)
        if self.train.evaluate_every is not None and not self.data.held_out:
            # Nothing else says what to evaluate on.
            message = (
                f"train.evaluate_every = {self.train.evaluate_every} evaluates on held-out data, and "
                "data.held_out = 0 leaves none: set it above 0, such as 0.01, or "
                "train.evaluate_every to 0"
            )
            raise InvalidInputError(message, code="config_value")
        if self.train.stage_layers:
            # The core knows what a split is, and refuses what is none.
            LayerSplit(self.model.num_hidden_layers, stated=self.train.stage_layers)


@dataclasses.dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration, and where it comes from.

    Attributes:
        config: checked.
        origins: of every value, by dotted key such as `train.steps`: `default`, `preset NAME`, the path of
            the file or of a `config.json` (`left out of` one, where it follows from the model's family), or
            `--set`; of weights that a folder brings `model.path of` one of these.
    """

    config: RunConfig
    origins: Mapping[str, str]


def _others() -> dict[str, SectionHints]:
    """Say what there is beside the fields of each section."""
    sections = get_type_hints(RunConfig)
    elsewhere = {
        field.name: name for name, section in sections.items() for field in dataclasses.fields(section)
    }
    preset = f"name a preset, {', '.join(map(repr, PRESETS))}"
    others = {name: SectionHints(elsewhere=elsewhere) for name in sections}
    others["model"] = SectionHints(SOURCES, " or ".join(f"model.{key}" for key in SOURCES), elsewhere)
    others |= {name: SectionHints(remedy=preset, elsewhere=elsewhere) for name in ("planner", "output")}
    return {"": SectionHints(keys=(_PRESET,), elsewhere=elsewhere), **others}


_OTHERS = _others()


def load(path: str | Path, overrides: Sequence[str] = (), preset: str | None = None) -> RunConfig:
    """Read a run configuration; of two layers that give a key the later one counts.

    The layers are a preset, which the file names by the key `preset` in front of its sections, the file, and
    the overrides in their order. In the section `model` the key `hf_config` names a `config.json` of Hugging
    Face, whose values the other keys of the section override; `path` names a whole model folder, from which
    the parameters come too, as `checkpoint.weights` says then.

    Args:
        path: the TOML file.
        overrides: each `section.key=value`, for example `train.steps=100` (see `read_override`).
        preset: in place of the one that the file names.

    Returns:
        The validated configuration.

    Raises:
        InvalidInputError: the file cannot be read (code `file_unreadable`), it or an override is not TOML
            (`config_syntax`), or a key or a value is refused (see `from_table`, `from_hugging_face` and the
            sections), or `train.stage_layers` is no split of the model's layers (`scheme_model_mismatch`).
    """
    return load_with_origins(path, overrides, preset).config


def load_with_origins(
    path: str | Path, overrides: Sequence[str] = (), preset: str | None = None
) -> LoadedConfig:
    """Read a run configuration as `load` does, and remember where each value comes from."""
    layers = _layers(path, overrides, preset)
    resolve_model(layers)
    config = from_table(RunConfig, layers.tables, "", _OTHERS)
    _refuse_no_source(config, layers)
    return LoadedConfig(config, {name: layers.origin(name) for name in _names()})


def load_data_section(
    path: str | Path, overrides: Sequence[str] = (), preset: str | None = None
) -> DataConfig:
    """Read the section `data` as `load` does; others may be absent and are not looked into.

    Raises:
        InvalidInputError: as `load`, for this section and the names of all.
    """
    tables = _layers(path, overrides, preset).tables
    refuse_unknown_keys(RunConfig, tables, "", _OTHERS[""])
    return from_table(DataConfig, tables.get("data", {}), "data")


def _layers(path: str | Path, overrides: Sequence[str], preset: str | None) -> Layers:
    layers = Layers()
    tables = read_tables(Path(path))
    named = tables.pop(_PRESET, None)
    wanted = named if preset is None else preset
    if wanted is not None:
        layers.add(read_preset(wanted), f"preset {wanted}")
    layers.add(tables, str(path))
    for override in overrides:
        layers.add(read_override(override, _kind_of), OVERRIDE)
    return layers


def _refuse_no_source(config: RunConfig, layers: Layers) -> None:
    """Refuse an empty list of sources: what is taken in its place must be asked for by name."""
    if not config.data.sources and "data.sources" in layers.origins and "data.source" not in layers.origins:
        message = (
            "data.sources = [] names no files; name some, or set data.source = 'stdlib' for the functions of "
            "Python's standard library"
        )
        raise InvalidInputError(message, code="config_value")


def to_dict(config: RunConfig) -> dict[str, dict[str, object]]:
    """Return the effective configuration, defaults included, as plain values for JSON."""
    return dataclasses.asdict(config)


def _kind_of(section: str, key: str) -> object:
    """Give the declared type of a key, None if there is no such key."""
    if section == "model" and key in SOURCES:
        return str
    table = get_type_hints(RunConfig).get(section)
    return None if table is None else get_type_hints(table).get(key)


def _names() -> Iterator[str]:
    for section, table in get_type_hints(RunConfig).items():
        for field in dataclasses.fields(table):
            yield f"{section}.{field.name}"
