"""Builds frozen dataclasses from parsed TOML tables.

A table must match its dataclass: an unknown key, a missing key and a value of another type are errors that
name the section and the key. There are two conversions: an array becomes a tuple, and an integer becomes a
float where a float is declared. Every dataclass checks the ranges of its values in `__post_init__`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from hydraulis.errors import InvalidInputError
from hydraulis.text.values import as_toml, did_you_mean, is_text, nearest_name

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


class SectionHints(NamedTuple):
    """Facts about a section beyond its fields, for messages.

    Attributes:
        keys: Valid keys that are no fields, because the reader of the file replaces them.
        remedy: Another way to set the required keys, such as a preset.
        elsewhere: Section of each key of the whole file.
    """

    keys: tuple[str, ...] = ()
    remedy: str = ""
    elsewhere: Mapping[str, str] = MappingProxyType({})


HintsBySection: TypeAlias = Mapping[str, SectionHints]
"""Hints by the name of a section; the empty name is the whole file."""

_WHOLE = "the run configuration"
# Counts become 64-bit numbers in the planner and in torch.
_LARGEST = (1 << 63) - 1
_NO_HINTS: HintsBySection = {}
# Values that stand for `cuda` elsewhere, without the number of a device.
_WORDS_FOR_CUDA = ("gpu", "nvidia", "cuda")
_NO_SECTION_HINTS = SectionHints()

_TYPE_NAMES: dict[object, str] = {
    bool: "a boolean",
    float: "a float",
    int: "an integer",
    str: "a string",
    list: "an array",
    dict: "a table",
}


def from_table(cls: type[T], table: object, section: str, hints: HintsBySection = _NO_HINTS) -> T:
    """Build `cls` from a parsed TOML table, and the dataclasses nested in it from its sub-tables.

    A sub-table that is absent counts as empty, so that its defaults apply and its required keys are named.

    Args:
        cls: The dataclass to build.
        table: Value of the section from the TOML parser.
        section: Dotted name of the section, for messages; empty for the whole file.
        hints: Facts about the sections beyond their fields, for messages.

    Returns:
        The instance, checked by its own constructor.

    Raises:
        InvalidInputError: A key is unknown (code `config_unknown_key`) or missing (`config_missing_key`), or
            a value has another type or is none of the choices (`config_value`).
    """
    if not isinstance(table, Mapping):
        raise _type_error(table, section or _WHOLE, "a table")
    kinds, given, typed = _kinds(cls), dict(table), {}
    section_hints = hints.get(section, _NO_SECTION_HINTS)
    errors = _ErrorCollector()
    with errors.collect():
        refuse_unknown_keys(cls, given, section, section_hints)
        # Second: a missing key is often a misspelt one, which is reported first.
        given = {name: {} for name, kind in kinds.items() if is_dataclass(kind)} | given
        _refuse_missing_keys(cls, given, section, section_hints.remedy)
    for key, value in given.items():
        if key in kinds:
            with errors.collect():
                typed[key] = _typed(value, kinds[key], _join(section, key), hints)
    errors.raise_any()
    return cls(**typed)


@cache
def _kinds(cls: type[T]) -> dict[str, Any]:
    """Return the types of a dataclass's fields; cached, because reports read one table for each step."""
    return get_type_hints(cls)


def refuse_unknown_keys(cls: type[T], table: Mapping[str, object], section: str, hints: SectionHints) -> None:
    """Refuse keys that the dataclass lacks, with the valid ones in the message; errors as in `from_table`."""
    errors, own = _ErrorCollector(), [field.name for field in fields(cls)]
    for key in table:
        if key not in own:
            # In the whole file, an unknown table must be a section: no key of the file has a table.
            is_section = not section and isinstance(table[key], Mapping) and key not in hints.keys
            with errors.collect():
                raise _unknown_key(key, own, section, "section" if is_section else "key", hints)
    errors.raise_any()


def _unknown_key(
    key: str, own: Sequence[str], section: str, kind: str, hints: SectionHints
) -> InvalidInputError:
    choices = own if kind == "section" else [*hints.keys, *own]
    # Such as lr for learning_rate.
    initials = {"".join(word[:1] for word in name.split("_")): name for name in choices if "_" in name}
    near = initials.get(key) or nearest_name(key, choices, cutoff=0.0)
    other = hints.elsewhere.get(key)
    remedy = f"did you mean '{near}'?" if other is None else f"it belongs to [{other}]"
    message = (
        f"{kind} '{key}' in {_title(section)} is unknown; {remedy} (the {kind}s are {', '.join(choices)})"
    )
    return InvalidInputError(message, code="config_unknown_key")


def _refuse_missing_keys(cls: type[T], table: Mapping[str, object], section: str, remedy: str) -> None:
    missing = [field.name for field in fields(cls) if field.name not in table and _is_required(field)]
    if not missing:
        return
    is_one, names = len(missing) == 1, ", ".join(f"'{name}'" for name in missing)
    message = (
        f"{'key' if is_one else 'keys'} {names} in {_title(section)} {'is' if is_one else 'are'} missing and "
        f"{'has' if is_one else 'have'} no default; set {'it' if is_one else 'them'}"
        f"{f', or {remedy}' if remedy else ''}"
    )
    raise InvalidInputError(message, code="config_missing_key")


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _typed(value: object, kind: Any, name: str, hints: HintsBySection = _NO_HINTS) -> object:
    """Convert a value to the declared type of its field, or refuse it."""
    origin = get_origin(kind)
    if origin is UnionType:
        return _optional(value, kind, name)
    if origin is Literal:
        return _choice(value, kind, name)
    if origin is tuple:
        return _tuple(value, kind, name)
    if isinstance(kind, type) and is_dataclass(kind):
        return from_table(kind, value, name, hints)
    if kind in (int, float) and type(value) is int and abs(value) > _LARGEST:
        message = f"{name} = {as_toml(value)} is beyond the limit of {_LARGEST}; lower it"
        raise InvalidInputError(message, code="config_value")
    if kind is float and type(value) is int:
        return float(value)
    # isinstance would accept a bool as an int, but `steps = true` is a mistake.
    if type(value) is not kind:
        raise _type_error(value, name, _TYPE_NAMES[kind])
    if isinstance(value, str) and not is_text(value):
        message = f"{name} = {as_toml(value)} has bytes or characters that are no UTF-8; write it in UTF-8"
        raise InvalidInputError(message, code="config_value")
    return value


def _optional(value: object, kind: Any, name: str) -> object:
    """Convert `X | None`: TOML has no null, but a configuration saved as JSON has."""
    if value is None:
        return None
    (inner,) = (member for member in get_args(kind) if member is not NoneType)
    return _typed(value, inner, name)


def _choice(value: object, kind: Any, name: str) -> object:
    if value not in get_args(kind):
        choices = ", ".join(repr(choice) for choice in get_args(kind))
        near = _nearest_choice(value, get_args(kind)) if isinstance(value, str) else ""
        message = f"{name} = {as_toml(value)} must be one of {choices}; choose one{near}"
        raise InvalidInputError(message, code="config_value")
    return value


def _nearest_choice(value: str, choices: tuple[str, ...]) -> str:
    """Return the end of a message that suggests a choice: `cuda` for the words that others use for it."""
    word = value.casefold().partition(":")[0]
    meant = "cuda" if word in _WORDS_FOR_CUDA and "cuda" in choices else value
    return did_you_mean(meant, choices)


def _tuple(value: object, kind: Any, name: str) -> tuple[object, ...]:
    members = get_args(kind)
    holds = "an array" if members[-1] is Ellipsis else f"an array of {len(members)} values"
    if not isinstance(value, list):
        is_one = members[-1] is Ellipsis and type(value) is members[0]
        raise _type_error(value, name, f"{holds}, such as [{as_toml(value)}]" if is_one else holds)
    if members[-1] is Ellipsis:
        members = (members[0],) * len(value)
    if len(value) != len(members):
        raise _type_error(value, name, holds)
    return tuple(_typed(*pair, f"{name}[{i}]") for i, pair in enumerate(zip(value, members, strict=True)))


def _type_error(value: object, name: str, wanted: str) -> InvalidInputError:
    found = _TYPE_NAMES.get(type(value), f"a {type(value).__name__}")
    is_quoted = (
        isinstance(value, str) and wanted in (_TYPE_NAMES[int], _TYPE_NAMES[float]) and _is_number(value)
    )
    remedy = "leave the quotes out" if is_quoted else "change its type"
    message = f"{name} = {as_toml(value)} is {found} and must be {wanted}; {remedy}"
    return InvalidInputError(message, code="config_value")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _join(section: str, key: str) -> str:
    return f"{section}.{key}" if section else key


def _title(section: str) -> str:
    return f"section [{section}]" if section else _WHOLE


class _ErrorCollector:
    """Collects independent errors, so that one message reports all of them."""

    def __init__(self) -> None:
        self._errors: list[InvalidInputError] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Keep an error of the block and continue after it."""
        try:
            yield
        except InvalidInputError as error:
            self._errors.append(error)

    def raise_any(self) -> None:
        """Raise one error with all messages and the code of the first, if there is any."""
        if not self._errors:
            return
        error, *others = self._errors
        if not others:
            raise error
        raise InvalidInputError("; also: ".join(map(str, self._errors)), code=error.code)
