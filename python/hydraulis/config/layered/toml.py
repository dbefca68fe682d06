"""Writes a configuration as TOML with the origin of each value; the text can be read again."""

import json
from collections.abc import Mapping, Sequence

from hydraulis.config.run import LoadedConfig, to_dict

# The origins after longer lines are not aligned.
_WIDEST = 72
_UNUSED = "# source is not used: sources are set"


def to_toml(loaded: LoadedConfig) -> str:
    """Return the text of a whole configuration, with absent fields as comments."""
    sections = to_dict(loaded.config)
    return "\n".join(_section(name, table, loaded.origins) for name, table in sections.items())


def toml_value(value: object) -> str:
    """Return a value in TOML.

    Args:
        value: String, number, boolean, or a sequence or mapping of these; None in a mapping is left out.

    Raises:
        TypeError: The value has no form in TOML.
    """
    match value:
        case bool() | str():
            # DEL is the one character that TOML escapes and JSON does not.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case int() | float():
            return repr(value)
        case Mapping():
            given = {key: one for key, one in value.items() if one is not None}
            return f"{{ {', '.join(f'{key} = {toml_value(one)}' for key, one in given.items())} }}"
        case Sequence():
            return f"[{', '.join(map(toml_value, value))}]"
        case _:
            message = f"{value!r} has no form in TOML"
            raise TypeError(message)


def _section(name: str, table: Mapping[str, object], origins: Mapping[str, str]) -> str:
    lines = [
        (_UNUSED if _is_unused(name, key, table) else _line(key, value), origins[f"{name}.{key}"])
        for key, value in table.items()
    ]
    ends = [line.rpartition("\n")[2] for line, _ in lines]
    width = max(len(end) for end in ends if len(end) <= _WIDEST)
    aligned = [
        f"{line}{' ' * max(0, width - len(end))}  # {' '.join(origin.splitlines())}"
        for (line, origin), end in zip(lines, ends, strict=True)
    ]
    return "".join(f"{line}\n" for line in (f"[{name}]", *aligned))


def _is_unused(name: str, key: str, table: Mapping[str, object]) -> bool:
    """Check whether another key of the section replaces this one."""
    return (name, key) == ("data", "source") and bool(table["sources"])


def _line(key: str, value: object) -> str:
    if value is None:
        return f"# {key} is absent"
    if isinstance(value, Sequence) and value and isinstance(value[0], Mapping):
        # TOML allows line breaks in an array but not in an inline table.
        inner = "".join(f"    {toml_value(one)},\n" for one in value)
        return f"{key} = [\n{inner}]"
    return f"{key} = {toml_value(value)}"


def origins_by_section(loaded: LoadedConfig) -> dict[str, dict[str, str]]:
    """Return the origins of the values by section and key."""
    return {
        section: {key: loaded.origins[f"{section}.{key}"] for key in table}
        for section, table in to_dict(loaded.config).items()
    }
