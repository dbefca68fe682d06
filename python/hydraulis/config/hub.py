"""Names of the Hub, where a folder on this machine is wanted: nothing is fetched."""

import re
from pathlib import Path

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
