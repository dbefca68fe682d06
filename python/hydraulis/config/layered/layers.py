"""The layers of a configuration: a preset, the file, then overrides."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from hydraulis.config.hugging_face.read import MODEL_CONFIG
from hydraulis.config.planner import SEARCH
from hydraulis.errors import InvalidInputError
from hydraulis.text.documents import describe_read_error, parse_toml
from hydraulis.text.values import as_toml, did_you_mean

PRESETS = ("laptop", "node", "nodes")


def read_preset(name: object) -> dict[str, object]:
    """Read the tables of a preset.

    Raises:
        InvalidInputError: The name is unknown (code `config_value`).
    """
    if name not in PRESETS:
        choices = ", ".join(map(repr, PRESETS))
        message = (
            f"preset = {as_toml(name)} must be one of {choices}; choose one{did_you_mean(str(name), PRESETS)}"
        )
        raise InvalidInputError(message, code="config_value")
    return tomllib.loads(preset_text(str(name)))


def preset_text(name: str) -> str:
    """Return the TOML text of a preset."""
    return (files("hydraulis.config") / "presets" / f"{name}.toml").read_text(encoding="utf-8")


DEFAULT = "default"
OVERRIDE = "--set"

_ALTERNATIVES = (
    {"data.tokens_per_batch", "data.sequences_per_batch"},
    {"model.path", "model.hf_config"},
    {"model.path", "checkpoint.weights"},
)
"""Alternative keys: a layer that sets one removes the others of earlier layers."""

_OF_A_SEARCH = {"planner.checkpointing", "planner.schemes"}
"""Keys of a search for schemes: a layer that names schemes itself removes those of earlier layers."""


@dataclass(slots=True)
class Layers:
    """The merged tables of all layers so far, and the origin of each key.

    Attributes:
        tables: Tables by section, as the TOML parser returns them.
        origins: Origin by dotted key, such as `train.steps`; an absent key has its default.
    """

    tables: dict[str, object] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def add(self, tables: Mapping[str, object], origin: str) -> None:
        """Merge tables over the earlier ones; unknown keys are found later, by `from_table`."""
        named = {f"{section}.{key}" for section, table in tables.items() for key in _keys(table)}
        if "checkpoint.weights" in named:
            self._keep_shape()
        if _names_schemes(tables.get("planner")):
            for name in _OF_A_SEARCH - named:
                self._remove(name)
        for names in _ALTERNATIVES:
            if names & named:
                for name in names - named:
                    self._remove(name)
        for section, table in tables.items():
            below = self.tables.setdefault(section, {})
            if isinstance(below, dict) and isinstance(table, Mapping):
                below.update(table)
            elif isinstance(below, dict):
                # `from_table` refuses the value.
                self.tables[section] = table
        self.origins |= dict.fromkeys(named, origin)

    def origin(self, name: str) -> str:
        """Return the origin of the value of a key."""
        return self.origins.get(name, DEFAULT)

    def _keep_shape(self) -> None:
        """Keep the shape of an earlier `model.path` when a later layer sets other weights."""
        section = self.tables.get("model")
        if isinstance(section, dict) and isinstance(section.get("path"), str) and "hf_config" not in section:
            section["hf_config"] = str(Path(section["path"]) / MODEL_CONFIG)
            self.origins["model.hf_config"] = self.origins["model.path"]

    def _remove(self, name: str) -> None:
        section, key = name.split(".")
        table = self.tables.get(section)
        if isinstance(table, dict):
            table.pop(key, None)
        self.origins.pop(name, None)


def read_tables(path: Path) -> dict[str, object]:
    """Read the tables of a TOML file.

    Raises:
        InvalidInputError: The file cannot be read (code `file_unreadable`) or is not TOML (`config_syntax`).
    """
    try:
        return parse_toml(path.read_text(encoding="utf-8"))
    except OSError as error:
        message = (
            f"run configuration '{path}' must be a file that can be read "
            f"({describe_read_error(path, error)}); check the path"
        )
        raise InvalidInputError(message, code="file_unreadable") from error
    except ValueError as error:
        message = f"run configuration '{path}' must be TOML in UTF-8: {error}; correct it there"
        raise InvalidInputError(message, code="config_syntax") from error


def _names_schemes(planner: object) -> bool:
    """Return whether a table of the section `planner` lists schemes, or strategies other than a search."""
    if not isinstance(planner, Mapping):
        return False
    search = list(SEARCH)
    return "schemes" in planner or planner.get("strategies", search) != search


def _keys(table: object) -> list[str]:
    return list(table) if isinstance(table, Mapping) else []
