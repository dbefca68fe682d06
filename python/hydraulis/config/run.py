"""The configuration of a training run: one TOML file, one table per section, one dataclass per table.

A section's dataclass declares its keys; unknown keys are errors. Constructing a section checks its values, so
every instance is valid. The options of the planner's algorithms belong to the core (`hydraulis.Planner`).
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
from hydraulis.config.lora import LoraConfig
from hydraulis.config.model import ModelConfig
from hydraulis.config.optimizer import OptimizerConfig
from hydraulis.config.output import CheckpointConfig, OutputConfig
from hydraulis.config.planner import PlannerConfig
from hydraulis.config.samples import SamplesConfig
from hydraulis.config.train import TrainConfig
from hydraulis.errors import InvalidInputError

# The standard library's tokens are bytes, and the embedding needs a row for each.
NUM_BYTE_TOKENS = 256
_PRESET = "preset"
_PRESET_REMEDY = f"name a preset, {', '.join(map(repr, PRESETS))}"
# The one field of a section that is no key: the section lora sets it.
_ADAPTERS = "adapters"
_WINDOW = "model.sliding_window, because attention here covers whole sequences"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """A training run, one attribute per section of its file; the section `lora` sets `model.adapters`."""

    model: ModelConfig
    data: DataConfig
    train: TrainConfig
    optimizer: OptimizerConfig
    lora: LoraConfig
    planner: PlannerConfig
    samples: SamplesConfig
    checkpoint: CheckpointConfig
    output: OutputConfig

    def __post_init__(self) -> None:
        self._set_adapters()
        if not self.planner.profile:
            self.check_memory()
        # The tokens of files are compared with the vocabulary when the files are read.
        if not self.data.sources:
            check_at_least("model.vocab_size", self.model.vocab_size, NUM_BYTE_TOKENS)
        if self.model.sliding_window is not None:
            check_at_most("data.max_tokens", self.data.max_tokens, self.model.sliding_window, _WINDOW)
        if self.train.evaluate_every is not None and not self.data.evaluates:
            message = (
                f"train.evaluate_every = {self.train.evaluate_every} evaluates on held-out data, and "
                "data.held_out = 0 leaves none: set it above 0, such as 0.01, name files in data.validation, "
                "or set train.evaluate_every to 0"
            )
            raise InvalidInputError(message, code="config_value")
        if self.samples.every is not None:
            # A prompt's number is a token until its next one is known.
            field, why = "len(samples.prompts)", "model.vocab_size"
            check_at_most(field, len(self.samples.prompts), self.model.vocab_size, why)
        evaluated, saved = self.train.evaluate_every, self.checkpoint.every_steps
        if self.checkpoint.keep_best and (evaluated is None or saved is None or saved % evaluated):
            message = (
                "checkpoint.keep_best keeps the checkpoint with the lowest evaluation loss: set "
                "train.evaluate_every, and checkpoint.every_steps to a multiple of it"
            )
            raise InvalidInputError(message, code="config_value")
        if self.train.stage_layers:
            # The core checks the split.
            LayerSplit(self.model.num_hidden_layers, stated=self.train.stage_layers)

    def check_memory(self) -> None:
        """Check that the memory of a rank is known, which a measurement needs; a saved profile has its own.

        Raises:
            InvalidInputError: `planner.memory_mib` is absent, and the ranks need not be on CUDA devices (code
                `config_missing_key`).
        """
        if self.planner.memory_mib is None and self.train.device != "cuda":
            message = (
                f"key 'memory_mib' in section [planner] is missing, and train.device = '{self.train.device}' "
                f"has no default for it; set it, or {_PRESET_REMEDY}"
            )
            raise InvalidInputError(message, code="config_missing_key")

    def _set_adapters(self) -> None:
        adapters = self.lora.adapters
        if self.model.adapters not in (None, adapters):
            message = f"model.{_ADAPTERS} is set by the section lora; write lora.rank and lora.alpha there"
            raise InvalidInputError(message, code="config_value")
        object.__setattr__(self, "model", dataclasses.replace(self.model, adapters=adapters))


@dataclasses.dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration and the origin of each value.

    Attributes:
        config: The checked configuration.
        origins: Origin of every value by dotted key, such as `train.steps`: `default`, `preset NAME`, the
            path of the file or of a `config.json`, `left out of` a `config.json` for a default of the
            model's family, `--set`, or `model.path of` one of these for the weights of a model's folder.
    """

    config: RunConfig
    origins: Mapping[str, str]


def _hints() -> dict[str, SectionHints]:
    """Collect the hints for messages about each section."""
    sections = get_type_hints(RunConfig)
    elsewhere = {
        field.name: name for name, section in sections.items() for field in dataclasses.fields(section)
    }
    del elsewhere[_ADAPTERS]
    preset = _PRESET_REMEDY
    hints = {name: SectionHints(elsewhere=elsewhere) for name in sections}
    hints["model"] = SectionHints(SOURCES, " or ".join(f"model.{key}" for key in SOURCES), elsewhere)
    hints |= {name: SectionHints(remedy=preset, elsewhere=elsewhere) for name in ("planner", "output")}
    return {"": SectionHints(keys=(_PRESET,), elsewhere=elsewhere), **hints}


_HINTS = _hints()


def load(path: str | Path, overrides: Sequence[str] = (), preset: str | None = None) -> RunConfig:
    """Read a run configuration; a later layer overrides an earlier one.

    The layers are a preset (named by the key `preset` before the first section), the file, and the overrides
    in their order. In the section `model`, `hf_config` names a `config.json` of Hugging Face, whose values
    the other keys of the section override; `path` names a model's folder, which also has the parameters and
    sets `checkpoint.weights`.

    Args:
        path: Path of the TOML file.
        overrides: Overrides `section.key=value`, such as `train.steps=100` (see `read_override`).
        preset: Name of a preset that replaces the file's.

    Returns:
        The checked configuration.

    Raises:
        InvalidInputError: The file cannot be read (code `file_unreadable`), the file or an override is not
            TOML (`config_syntax`), a key or a value is refused (see `from_table`, `from_hugging_face` and the
            sections), or `train.stage_layers` is no split of the model's layers (`scheme_model_mismatch`).
    """
    return load_with_origins(path, overrides, preset).config


def load_with_origins(
    path: str | Path, overrides: Sequence[str] = (), preset: str | None = None
) -> LoadedConfig:
    """Read a run configuration as `load` does, with the origin of each value."""
    layers = _layers(path, overrides, preset)
    resolve_model(layers)
    config = from_table(RunConfig, layers.tables, "", _HINTS)
    _refuse_no_source(config, layers)
    return LoadedConfig(config, {name: layers.origin(name) for name in _names(config)})


def load_data_section(
    path: str | Path, overrides: Sequence[str] = (), preset: str | None = None
) -> DataConfig:
    """Read the section `data` as `load` does; the other sections may be absent and are not checked.

    Raises:
        InvalidInputError: The section, or the name of another section, is refused as in `load`.
    """
    tables = _layers(path, overrides, preset).tables
    refuse_unknown_keys(RunConfig, tables, "", _HINTS[""])
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
    """Refuse an explicitly empty list of sources, unless `data.source` is set explicitly too."""
    if not config.data.sources and "data.sources" in layers.origins and "data.source" not in layers.origins:
        message = (
            "data.sources = [] names no files; name some, or set data.source = 'stdlib' for the functions of "
            "the Python standard library"
        )
        raise InvalidInputError(message, code="config_value")


def to_dict(config: RunConfig) -> dict[str, dict[str, object]]:
    """Return the effective configuration, defaults included, as plain values for JSON."""
    sections = dataclasses.asdict(config)
    # The section lora states them.
    del sections["model"][_ADAPTERS]
    return sections


def _kind_of(section: str, key: str) -> object:
    """Return the declared type of a key; None for an unknown key."""
    if section == "model" and key in SOURCES:
        return str
    table = get_type_hints(RunConfig).get(section)
    return None if table is None else get_type_hints(table).get(key)


def _names(config: RunConfig) -> Iterator[str]:
    for section, table in to_dict(config).items():
        yield from (f"{section}.{key}" for key in table)
