"""Command-line overrides of single keys: `section.key=value`, the value written as in TOML."""

import tomllib

from hydraulis.errors import InvalidInputError


def apply_override(tables: dict[str, object], override: str) -> None:
    """Set one key in the parsed tables of a file, in place.

    Whether the section and the key exist is not asked here: the dataclasses decide that for the file and
    its overrides alike.

    Args:
        tables: the sections of the file, as the TOML parser gave them.
        override: for example `train.steps=100` or `train.dtype="float64"`.

    Raises:
        InvalidInputError: it is not of that form, or the value is not TOML (code `config_syntax`).
    """
    name, equals, text = override.partition("=")
    section, dot, key = name.strip().partition(".")
    if not (equals and dot and section and key):
        message = f"override '{override}' must be section.key=value; write it like train.steps=100"
        raise InvalidInputError(message, code="config_syntax")
    table = tables.setdefault(section, {})
    if isinstance(table, dict):
        table[key] = _parse(text.strip(), override)


def _parse(text: str, override: str) -> object:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError as error:
        message = f"override '{override}' must have a TOML value ({error}); put a string in quotes"
        raise InvalidInputError(message, code="config_syntax") from error
    if len(parsed) != 1:
        message = f"override '{override}' must hold one value; give every key its own override"
        raise InvalidInputError(message, code="config_syntax")
    return parsed["value"]
