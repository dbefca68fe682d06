"""Files that the planner reads: one way to refuse those that cannot be read."""

from pathlib import Path

from hydraulis.errors import InvalidInputError


def unreadable(path: Path, error: OSError | UnicodeDecodeError) -> InvalidInputError:
    """Make the error for a file that cannot be opened, or that is not the text it should be."""
    if isinstance(error, UnicodeDecodeError):
        why = f"byte {error.start} is not UTF-8; save it as UTF-8 text"
    else:
        why = f"{error.strerror or error}; check the path and its permissions"
    message = f"file '{path}' cannot be read: {why}"
    return InvalidInputError(message, code="file_unreadable")
