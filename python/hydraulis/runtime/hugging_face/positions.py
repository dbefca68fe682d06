"""Compares a run's sequence lengths with the positions of the model that it starts from."""

from pathlib import Path

from hydraulis.config.hugging_face.read import MODEL_CONFIG, read_max_positions
from hydraulis.config.run import RunConfig


def positions_note(config: RunConfig) -> str:
    """Return a note if `data.max_tokens` exceeds the model's positions, otherwise an empty string.

    Raises:
        InvalidInputError: The folder's config.json cannot be read (code `file_unreadable`) or is malformed
            (`config_syntax`).
    """
    path = Path(config.checkpoint.weights) / MODEL_CONFIG
    # A folder with parameters only has no config.json.
    if not config.checkpoint.weights or not path.is_file():
        return ""
    stated, longest = read_max_positions(path), config.data.max_tokens
    if stated is None or longest <= stated:
        return ""
    return (
        f"data.max_tokens = {longest:,} is above max_position_embeddings = {stated:,} of {path}: positions "
        "beyond that are new to the model; an export will state the larger number"
    )
