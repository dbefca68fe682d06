"""Values of a configuration as messages write them: as its file does, and not as Python."""

from collections.abc import Mapping
from datetime import date, time


def written(value: object) -> str:
    """Write a value as TOML or JSON has it, strings in single quotes as everywhere in messages.

    >>> written(True), written(None), written("a"), written(0.5), written({"a": [1, False]})
    ('true', 'null', "'a'", '0.5', '{ a = [1, false] }')
    """
    match value:
        case bool():
            return str(value).lower()
        case None:
            return "null"
        case Mapping():
            return f"{{ {', '.join(f'{key} = {written(one)}' for key, one in value.items())} }}"
        case list() | tuple():
            return f"[{', '.join(map(written, value))}]"
        case date() | time():
            return value.isoformat()
        case _:
            return repr(value)
