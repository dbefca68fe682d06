"""Why a path cannot be read, in words."""

import json
import re
from pathlib import Path


def describe_read_error(path: Path, error: OSError) -> str:
    """Say what the system says, and where a relative path was looked for."""
    why = error.strerror or str(error)
    return why if path.is_absolute() else f"{why}: {path.absolute()}"


def describe_json_error(error: ValueError | RecursionError) -> str:
    """Say what the parser says of one line; a line number of its own would be taken for the file's."""
    return (
        f"{error.msg.removesuffix(' at')}, column {error.colno}"
        if isinstance(error, json.JSONDecodeError)
        else str(error)
    )


_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
"""What both a model of the Hub and a folder of a folder may be called."""


def hub_remedy(path: str) -> str:
    """Say how what a path may name on the Hub gets here, as a list of remedies goes on; else nothing."""
    if not _NAME.fullmatch(path) or Path(path).exists():
        return ""
    own = path.partition("/")[2]
    return (
        ", or if it is a model's name on the Hub: nothing is fetched, "
        f"hf download {path} --local-dir {own} does it, and {own} is the folder"
    )
