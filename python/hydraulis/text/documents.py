"""Parses JSON and TOML of any content, and gives the reason why a path or a text cannot be read.

Every text that is refused raises a ValueError.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

_TOO_DEEP = "its tables or lists are nested too deeply"


def parse_json(text: str) -> Any:
    """Parse a JSON document.

    Raises:
        ValueError: The text is no JSON, or is nested more deeply than the parser can follow.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML document.

    Raises:
        ValueError: The text is no TOML, has a number of thousands of digits, or is nested more deeply than
            the parser can follow.
    """
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error


def describe_read_error(path: Path, error: OSError) -> str:
    """Return the system's reason; for a relative path also the absolute path that was tried."""
    reason = error.strerror or str(error)
    return reason if path.is_absolute() else f"{reason}: {path.absolute()}"


def describe_json_error(error: ValueError | RecursionError) -> str:
    """Return the parser's reason and column; its line number counts within the text and is left out."""
    return (
        f"{error.msg.removesuffix(' at')}, column {error.colno}"
        if isinstance(error, json.JSONDecodeError)
        else str(error)
    )


_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
"""A name that fits both a model of the Hugging Face Hub and a folder with its parent."""


def hub_remedy(path: str) -> str:
    """Return the remedy for a path that looks like a model's name on the Hub; an empty string otherwise.

    The text continues a list of remedies.
    """
    if not _NAME.fullmatch(path) or Path(path).exists():
        return ""
    own = path.partition("/")[2]
    return (
        ", or if it is a model's name on the Hub, download the model first: "
        f"hf download {path} --local-dir {own}; {own} is then the folder"
    )
