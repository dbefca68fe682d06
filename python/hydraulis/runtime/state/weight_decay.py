"""Check of the patterns that exclude parameters from weight decay."""

from fnmatch import fnmatchcase

from hydraulis.config.optimizer import OptimizerConfig
from hydraulis.config.run import RunConfig
from hydraulis.model.parameters import checkpoint_name, named_rows


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
