"""Cost profiles: a shipped one by its name, or your own from its JSON file."""

from pathlib import Path

from hydraulis._core import CostProfile
from hydraulis.errors import InvalidInputError
from hydraulis.planner.files import unreadable


def load_profile(name_or_path: str | Path) -> CostProfile:
    """Read a preset by its name, or a profile's JSON file by its path.

    A preset's name wins over a file of the same name; write `./name` for the file.

    Args:
        name_or_path: one of `CostProfile.presets()`, or a path.

    Returns:
        The profile, checked.

    Raises:
        InvalidInputError: neither a preset nor a file bears the name (code `preset_unknown`), the file cannot
            be read (`file_unreadable`), or it holds no sound profile (`profile_syntax`, `profile_value`).

    >>> load_profile("llama-32b-a800").gpus_per_node
    8
    """
    path = Path(name_or_path)
    if isinstance(name_or_path, str):
        is_name = path.name == name_or_path and not path.suffix and not path.exists()
        if is_name or name_or_path in CostProfile.presets():
            return CostProfile.preset(name_or_path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from error
    try:
        return CostProfile.from_json(text)
    except InvalidInputError as error:
        # The core knows the field but not the file.
        message = f"file '{path}': {error}"
        raise InvalidInputError(message, code=error.code) from None
