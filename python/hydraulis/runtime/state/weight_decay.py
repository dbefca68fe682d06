"""Whether what is to have no weight decay is there."""

from fnmatch import fnmatchcase

from hydraulis.config.optimizer import OptimizerConfig
from hydraulis.config.run import RunConfig
from hydraulis.model.parameters import checkpoint_name
from hydraulis.runtime.state.parameters import ModelParameters


def no_decay_note(config: RunConfig) -> str:
    """Name the patterns of `optimizer.no_decay` that match no parameter; else nothing.

    Of the default ones nothing is said: they are those of all families, and some have no biases.
    """
    default = OptimizerConfig().no_decay
    asked = [pattern for pattern in config.optimizer.no_decay if pattern not in default]
    if not asked:
        return ""
    names = [checkpoint_name(name) for name in ModelParameters.of(config.model).names]
    idle = [pattern for pattern in asked if not any(fnmatchcase(name, pattern) for name in names)]
    if not idle:
        return ""
    match = "matches" if len(idle) == 1 else "match"
    return (
        f"optimizer.no_decay: {', '.join(map(repr, idle))} {match} no parameter of the model; write names as "
        "model.safetensors has them, such as 'model.layers.*.mlp.*'"
    )
