"""Notes on settings that a run would train with, but probably not as meant."""

from fnmatch import fnmatchcase
from pathlib import Path

from hydraulis.config.hugging_face.read import MODEL_CONFIG, read_max_positions
from hydraulis.config.optimizer import OptimizerConfig
from hydraulis.config.run import RunConfig
from hydraulis.model.parameters import checkpoint_name, named_rows


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


def no_decay_note(config: RunConfig) -> str:
    """Name the patterns of `optimizer.no_decay` that match no parameter; return nothing if all match.

    Default patterns are not named: they serve all families, and some families have no biases.
    """
    default = OptimizerConfig().no_decay
    asked = [pattern for pattern in config.optimizer.no_decay if pattern not in default]
    if not asked:
        return ""
    names = [checkpoint_name(name) for name in named_rows(config.model)]
    idle = [pattern for pattern in asked if not any(fnmatchcase(name, pattern) for name in names)]
    if not idle:
        return ""
    match = "matches" if len(idle) == 1 else "match"
    return (
        f"optimizer.no_decay: {', '.join(map(repr, idle))} {match} no parameter of the model; write names as "
        "model.safetensors has them, such as 'model.layers.*.mlp.*'"
    )
