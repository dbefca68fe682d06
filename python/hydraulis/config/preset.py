"""Presets: what fits a kind of machine, as the most general layer of a configuration.

Each is a TOML file of this package, in the form of a run's configuration; it says nothing of model and data.
"""

import tomllib
from importlib.resources import files

from hydraulis.config.nearest import meant
from hydraulis.config.written import written
from hydraulis.errors import InvalidInputError

PRESETS = ("laptop", "node", "nodes")


def read_preset(name: object) -> dict[str, object]:
    """Read the tables of a preset.

    Raises:
        InvalidInputError: there is none of that name (code `config_value`).
    """
    if name not in PRESETS:
        choices = ", ".join(map(repr, PRESETS))
        message = f"preset = {written(name)} must be one of {choices}; choose one{meant(str(name), PRESETS)}"
        raise InvalidInputError(message, code="config_value")
    return tomllib.loads(preset_text(str(name)))


def preset_text(name: str) -> str:
    """Return the file of a preset."""
    return (files("hydraulis.config") / "presets" / f"{name}.toml").read_text(encoding="utf-8")
