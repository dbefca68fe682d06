"""Parses JSON and TOML of any content; every text that is refused raises a ValueError."""

import json
import tomllib
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
