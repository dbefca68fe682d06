"""Why a file cannot be read, in words: a relative path was looked for in the working directory."""

from pathlib import Path


def why_unreadable(path: Path, error: OSError) -> str:
    """Say what the system says, and where a relative path was looked for."""
    why = error.strerror or str(error)
    return why if path.is_absolute() else f"{why}: {path.absolute()}"
