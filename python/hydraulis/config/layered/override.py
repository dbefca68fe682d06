"""Command-line overrides of single keys: `section.key=value`, the value written as in TOML.

Where a field takes a string, its quotes may be left out, because a shell takes a pair of them away; where it
takes a list of strings, so may the brackets, and `;` separates them, as in other options.
"""

import tomllib
from collections.abc import Callable
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from hydraulis.errors import InvalidInputError


def read_override(override: str, kind_of: Callable[[str, str], object]) -> dict[str, object]:
    """Read one override, as the table of a layer.

    Whether the section and the key exist is not asked here: the dataclasses decide that for all layers alike.

    Args:
        override: for example `train.steps=100` or `output.directory=runs/first`.
        kind_of: gives the declared type of a key of a section; None if there is no such key.

    Returns:
        The table. A word that is no TOML is a string there, also where the field takes none: what refuses it
        knows the key, and the type that is wanted.

    Raises:
        InvalidInputError: it is not of that form, or its quotes or brackets are not TOML (code
            `config_syntax`).
    """
    name, equals, text = override.partition("=")
    section, dot, key = name.strip().partition(".")
    if not (equals and dot and section and key):
        message = f"override '{override}' must be section.key=value; write it like train.steps=100"
        raise InvalidInputError(message, code="config_syntax")
    value = _value(text.strip(), kind_of(section.strip(), key.strip()), override)
    return {section.strip(): {key.strip(): value}}


def _value(text: str, kind: object, override: str) -> object:
    members = _members(kind)
    if text[:1] not in ('"', "'", "["):
        if str in members or text in members:
            return text
        if any(map(_is_string_list, members)):
            return [part.strip() for part in text.split(";") if part.strip()]
        if _only_strings(members) or _is_word(text):
            # So that the refusal names the choices, the type that is wanted, or the keys that there are.
            return text
    value = _parsed(text, override)
    return [value] if isinstance(value, str) and _is_list(members, value) else value


def _members(kind: object) -> tuple[object, ...]:
    """Give what a declared type allows: types, and the choices of a `Literal` themselves."""
    if get_origin(kind) in (UnionType, Union):
        return tuple(member for part in get_args(kind) for member in _members(part))
    return get_args(kind) if get_origin(kind) is Literal else (kind,)


def _only_strings(members: tuple[object, ...]) -> bool:
    return all(isinstance(member, str) for member in members)


def _is_word(text: str) -> bool:
    """Tell whether a value is neither TOML nor meant to be, as its quotes, brackets or lines would say."""
    try:
        tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return bool(text) and "\n" not in text and text[0] != "{"
    return False


def _is_string_list(kind: object) -> bool:
    """Tell whether a type is a tuple of any number of strings, or of choices among them."""
    if get_origin(kind) is not tuple:
        return False
    element, *rest = get_args(kind)
    return rest == [...] and (
        element is str or (get_origin(element) is Literal and _only_strings(get_args(element)))
    )


def _is_list(members: tuple[object, ...], value: str) -> bool:
    return any(map(_is_string_list, members)) and str not in members and value not in members


def _parsed(text: str, override: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError as error:
        message = (
            f"override '{override}' must have a value as TOML has it ({error}); correct what follows the '='"
        )
        raise InvalidInputError(message, code="config_syntax") from error
    if len(parsed) != 1:
        message = f"override '{override}' must hold one value; give every key its own override"
        raise InvalidInputError(message, code="config_syntax")
    return parsed["value"]
