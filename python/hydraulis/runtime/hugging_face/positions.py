"""How long sequences may be by the model that a run begins from."""

from pathlib import Path

from hydraulis.config.hugging_face.read import MODEL_CONFIG, read_max_positions
from hydraulis.config.run import RunConfig


def positions_note(config: RunConfig) -> str:
    """Say that a run's sequences may be longer than those that its model was made for; else nothing.

    Raises:
        InvalidInputError: the folder's config.json cannot be read (code `file_unreadable`) or is not one
            (`config_syntax`).
    """
    path = Path(config.checkpoint.weights) / MODEL_CONFIG
    # Parameters alone need none.
    if not config.checkpoint.weights or not path.is_file():
        return ""
    stated, longest = read_max_positions(path), config.data.max_tokens
    if stated is None or longest <= stated:
        return ""
    return (
        f"data.max_tokens = {longest:,} is above max_position_embeddings = {stated:,} of {path}: positions "
        "beyond that are new to the model; an export will state the larger number"
    )
