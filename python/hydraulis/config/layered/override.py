"""Command-line overrides of single keys: `section.key=value` with a value in TOML.

A string needs no quotes, because a shell removes a pair of them. A list of strings needs no brackets; `;`
separates its items, as in other options.
"""

from collections.abc import Callable
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from hydraulis.errors import InvalidInputError
from hydraulis.text.documents import parse_toml


def read_override(override: str, kind_of: Callable[[str, str], object]) -> dict[str, object]:
    """Parse one override into the tables of a layer; unknown keys are found later, by `from_table`.

    Args:
        override: Override such as `train.steps=100` or `output.directory=runs/first`.
        kind_of: Function from a section and a key to the declared type; None for an unknown key.

    Returns:
        The tables. A bare word is a string even for a key of another type; `from_table` then refuses it with
        the key and the declared type.

    Raises:
        InvalidInputError: The override has another form, or its value is not TOML (code `config_syntax`).
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
            # `from_table` refuses a wrong word with the choices, the type or the keys.
            return text
    value = _parsed(text, override)
    return [value] if isinstance(value, str) and _is_list(members, value) else value


def _members(kind: object) -> tuple[object, ...]:
    """Return the alternatives of a declared type: types, and the values of a `Literal`."""
    if get_origin(kind) in (UnionType, Union):
        return tuple(member for part in get_args(kind) for member in _members(part))
    return get_args(kind) if get_origin(kind) is Literal else (kind,)


def _only_strings(members: tuple[object, ...]) -> bool:
    return all(isinstance(member, str) for member in members)


def _is_word(text: str) -> bool:
    """Check whether a value is a bare word: not TOML, and without lines or braces."""
    try:
        parse_toml(f"value = {text}")
    except ValueError:
        return bool(text) and "\n" not in text and text[0] != "{"
    return False


def _is_string_list(kind: object) -> bool:
    """Check whether a type is a tuple of any number of strings or string literals."""
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
        parsed = parse_toml(f"value = {text}")
    except ValueError as error:
        message = f"override '{override}' must have a TOML value ({error}); correct the text after '='"
        raise InvalidInputError(message, code="config_syntax") from error
    if len(parsed) != 1:
        message = f"override '{override}' must have one value; write one override for each key"
        raise InvalidInputError(message, code="config_syntax")
    return parsed["value"]
