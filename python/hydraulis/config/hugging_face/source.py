"""Resolves the keys `path` and `hf_config` of the section `model` to a shape and initial weights."""

import dataclasses
from pathlib import Path
from typing import Any

from hydraulis.config.hugging_face.read import MODEL_CONFIG, from_hugging_face, stated_fields
from hydraulis.config.layered.layers import Layers
from hydraulis.errors import InvalidInputError
from hydraulis.text.documents import hub_remedy
from hydraulis.text.values import as_toml

SOURCES = ("path", "hf_config")


def resolve_model(layers: Layers) -> None:
    """Replace the two keys in place by the model's shape, which the section's other keys override.

    `path` is a whole model folder, so it also sets `checkpoint.weights`.

    Raises:
        InvalidInputError: A key is not a string or two keys describe the model (code `config_value`), `path`
            is no folder but may be a model's name on the Hub (`file_unreadable`), or `from_hugging_face`
            refuses the shape.
    """
    section = layers.tables.get("model")
    if not isinstance(section, dict):
        return
    checkpoint = layers.tables.setdefault("checkpoint", {})
    if "path" in section and isinstance(checkpoint, dict):
        _take_folder(section, checkpoint)
        layers.origins["checkpoint.weights"] = f"model.path of {layers.origins.pop('model.path')}"
    if "hf_config" in section:
        path = _text(section.pop("hf_config"), "model.hf_config", "the path of a config.json")
        shape = dataclasses.asdict(from_hugging_face(path))
        del shape["adapters"]
        stated = stated_fields(path)
        layers.origins |= {
            f"model.{key}": path if key in stated else f"left out of {path}"
            for key in shape.keys() - section.keys()
        }
        layers.origins.pop("model.hf_config", None)
        layers.tables["model"] = shape | section


def _take_folder(section: dict[str, Any], checkpoint: dict[str, Any]) -> None:
    path = _text(section.pop("path"), "model.path", "the folder of a model")
    for name, table in (("hf_config", section), ("weights", checkpoint)):
        if name in table:
            message = (
                f"model.path = {path!r} and {name} = {as_toml(table[name])} both describe the model; "
                "leave one of them out"
            )
            raise InvalidInputError(message, code="config_value")
    _refuse_name_of_hub(path)
    section["hf_config"] = str(Path(path) / MODEL_CONFIG)
    checkpoint["weights"] = path


def _refuse_name_of_hub(path: str) -> None:
    """Refuse a name that other tools would download; reading config.json refuses other missing paths."""
    remedy = hub_remedy(path)
    if remedy:
        message = (
            f"model.path = {path!r} must be a local folder, and {Path(path).absolute()} "
            f"does not exist; check the path{remedy}"
        )
        raise InvalidInputError(message, code="file_unreadable")


def _text(value: object, name: str, wanted: str) -> str:
    if type(value) is not str:
        message = f"{name} = {as_toml(value)} must be {wanted}; write it as a string"
        raise InvalidInputError(message, code="config_value")
    return value
