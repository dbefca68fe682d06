"""The shape of a model for the core, and its comparison with the shape of a cost profile."""

import json
from collections.abc import Sequence

from hydraulis._core import CostProfile, LayerSplit, ModelShape, Scheme
from hydraulis.config.model import ModelConfig
from hydraulis.config.run import RunConfig
from hydraulis.errors import InvalidInputError
from hydraulis.model.parameters import parameter_rows

_NUMBERS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)


def build_model_shape(config: ModelConfig) -> ModelShape:
    """Build the core's shape from the fields of a configuration that affect the cost.

    Raises:
        InvalidInputError: A number is beyond the limits of the core (code `model_invalid`).
    """
    fields: dict[str, object] = {name: getattr(config, name) for name in _NUMBERS}
    fields["parameters"] = [
        {
            "name": row.name,
            "rows": row.rows,
            "row_elements": row.row_elements,
            "units": row.split_units,
            "parts": row.parts,
            "trained": row.trained,
        }
        for row in parameter_rows(config)
    ]
    return ModelShape.from_json(json.dumps(fields))


def build_layer_split(config: ModelConfig, stage_layers: Sequence[Sequence[int]] = ()) -> LayerSplit:
    """Build the assignment of layers to pipeline stages: by cost, or as stated for some numbers of stages.

    Args:
        config: Shape of the model.
        stage_layers: Layers of each stage, one list for each number of stages with a stated assignment.

    Raises:
        InvalidInputError: A list is no split of the model's layers (code `scheme_model_mismatch`), or the
            model is beyond the limits of the core (`model_invalid`).
    """
    head_layers = build_model_shape(config).head_layers
    return LayerSplit(config.num_hidden_layers, head_layers=head_layers, stated=stage_layers)


def check_profile(config: RunConfig, source: str, profile: CostProfile) -> None:
    """Refuse a profile of another model, type, kernels or assignment of layers.

    Facts that the profile lacks are accepted.

    Args:
        config: Configuration of the run.
        source: Key and value that name the profile, for the message.
        profile: Profile to check.

    Raises:
        InvalidInputError: The profile differs from the run (code `profile_mismatch`).
    """
    differing = profile.model and profile.model.difference(build_model_shape(config.model))
    differing = differing or find_split_difference(config, profile)
    differing = differing or next(iter(find_type_differences(config, profile)), None)
    if differing:
        name, measured, wanted = differing
        message = (
            f"profile '{profile.name}' of {source} was measured with {name} {measured or 'none'}, and the "
            f"run has {wanted or 'none'}; measure a profile of this run (hydraulis profile RUN.toml), or "
            "leave this one out"
        )
        raise InvalidInputError(message, code="profile_mismatch")


def find_type_differences(config: RunConfig, profile: CostProfile) -> list[tuple[str, str, str]]:
    """List the differences of dtype and kernels that change the times, as far as the profile states them.

    Returns:
        The name of each setting, the profile's value and the run's.
    """
    train = config.train
    stated: list[tuple[str, object, object]] = [
        ("dtype", profile.dtype, train.dtype),
        ("compile", profile.compiled, train.compile),
        ("float8", profile.float8, train.float8),
        ("symmetric_memory", profile.symmetric_memory, train.symmetric_memory),
        ("sharding", profile.sharding, train.sharding),
    ]
    return [(name, _text(old), _text(new)) for name, old, new in stated if old not in (None, new)]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def find_split_difference(config: RunConfig, profile: CostProfile) -> tuple[str, str, str] | None:
    """Find the first scheme whose stages have other layers in a profile than in the run.

    A profile without stage layers assigns them by cost.

    Returns:
        The name of the difference, the profile's layers and the run's; None without a difference.
    """
    by_cost = build_layer_split(config.model)
    split = build_layer_split(config.model, config.train.stage_layers)
    for scheme in map(Scheme, profile.schemes):
        if 1 < scheme.pp <= config.model.num_hidden_layers:
            there = profile.stage_layers(scheme) or by_cost.stage_layers(scheme)
            here = split.stage_layers(scheme)
            if there != here:
                return f"stage_layers of {scheme}", str(there), str(here)
    return None
