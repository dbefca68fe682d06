"""Why a file or a line of it cannot be read, in words."""

import json
from pathlib import Path


def why_unreadable(path: Path, error: OSError) -> str:
    """Say what the system says, and where a relative path was looked for."""
    why = error.strerror or str(error)
    return why if path.is_absolute() else f"{why}: {path.absolute()}"


def why_no_json(error: ValueError | RecursionError) -> str:
    """Say what the parser says of one line; a line number of its own would be taken for the file's."""
    return (
        f"{error.msg.removesuffix(' at')}, column {error.colno}"
        if isinstance(error, json.JSONDecodeError)
        else str(error)
    )
