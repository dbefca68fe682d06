"""Cost profiles by name, path or prediction."""

from pathlib import Path

from hydraulis._core import Cluster, CostProfile, ModelShape
from hydraulis.config.hugging_face.read import MODEL_CONFIG, from_hugging_face
from hydraulis.config.kinds import ShardingKind
from hydraulis.errors import InvalidInputError
from hydraulis.files import unreadable_error
from hydraulis.planner.model_shape import build_model_shape
from hydraulis.planner.models import MODELS
from hydraulis.planner.profile_document import with_name
from hydraulis.text.values import did_you_mean

ANALYTIC = "analytic:"
"""Prefix of the names of predicted profiles."""
CONTEXT_DEGREES = ",cp"
"""Suffix of a measured profile that asks for derived context degrees."""
SHARDED = ",sharded-"
"""Suffix of a profile that asks for sharding, followed by its kind."""
SHARDINGS: tuple[ShardingKind, ...] = ("gradients", "parameters")
# An analytic profile has the schemes that fit such a cluster.
_CLUSTER = Cluster(gpus=256, gpus_per_node=8)


def load_profile(name_or_path: str | Path) -> CostProfile:
    """Load a preset by its name or a profile's JSON file by its path, or predict a profile.

    A preset's name has precedence over a file; write `./name` for the file.

    Args:
        name_or_path: One of `CostProfile.presets()` or a path, each with `,cp` for derived schemes of context
            degrees (`CostProfile.with_context_degrees`), or `analytic:MODEL:DEVICE[,KIND...]`. MODEL is
            the path of a Hugging Face `config.json`, the path of its folder, the name of a preset with the
            model, or one of `hydraulis.planner.models.MODELS`. DEVICE is one of `CostProfile.devices()`. Each
            KIND is a kind of activation checkpointing for the schemes, by default `none`. Each of these with
            `,sharded-gradients` or `,sharded-parameters` is for that sharding (`CostProfile.with_sharding`).

    Returns:
        The profile, checked.

    Raises:
        InvalidInputError: The name is neither a preset nor a file (code `profile_unknown`), the file cannot
            be read (`file_unreadable`), its profile is invalid (`profile_invalid`), or the model, the device
            or a kind of an analytic profile is refused (`profile_unknown`, `model_unsupported`,
            `config_value`, `argument_invalid`).

    >>> load_profile("llama-32b-a800").gpus_per_node
    8
    >>> load_profile("llama-32b-a800,cp").schemes[-1]
    '<tp16,cp4>'
    >>> load_profile("llama-32b-a800,sharded-gradients").sharding
    'gradients'
    >>> load_profile("analytic:qwen3-32b:H200").name
    'analytic-qwen3-32b-H200-141GB'
    >>> load_profile("analytic:llama-32b-a800:H100").name
    'analytic-llama-32b-a800-H100-80GB'
    >>> load_profile("analytic:llama-7b-a800:H100,none,full").schemes[-1]
    '<tp16,cp2,full>'
    """
    if isinstance(name_or_path, str):
        for kind in SHARDINGS:
            if name_or_path.endswith(SHARDED + kind):
                return load_profile(name_or_path.removesuffix(SHARDED + kind)).with_sharding(kind)
        if name_or_path.startswith(ANALYTIC):
            return _analytic(name_or_path)
        if name_or_path.endswith(CONTEXT_DEGREES):
            return load_profile(name_or_path.removesuffix(CONTEXT_DEGREES)).with_context_degrees()
    return _named_or_read(name_or_path)


def _named_or_read(name_or_path: str | Path) -> CostProfile:
    """Load a preset, or a file where no preset has the name."""
    path = Path(name_or_path)
    if isinstance(name_or_path, str):
        is_name = path.name == name_or_path and not path.suffix and not path.exists()
        if is_name or name_or_path in CostProfile.presets():
            return _preset(name_or_path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise _with_nearest(unreadable_error(path, error), str(path)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable_error(path, error) from error
    try:
        return CostProfile.from_json(text)
    except InvalidInputError as error:
        # The core names the field but not the file.
        message = f"file '{path}': {error}"
        if path.suffix == ".toml":
            message = f"file '{path}' is no cost profile; measure one with hydraulis profile"
        raise InvalidInputError(message, code=error.code) from None


def _preset(name: str) -> CostProfile:
    try:
        return CostProfile.preset(name)
    except InvalidInputError as error:
        # The core lists the names without the nearest one.
        raise _with_nearest(error, name) from None


def _with_nearest(error: InvalidInputError, name: str) -> InvalidInputError:
    message = f"{error}{did_you_mean(name, CostProfile.presets())}"
    return InvalidInputError(message, code=error.code)


def _analytic(text: str) -> CostProfile:
    model, _, rest = text.removeprefix(ANALYTIC).rpartition(":")
    device, *kinds = rest.split(",")
    if not (model and device):
        raise _no_name(text, "names no model and device")
    if "" in kinds:
        raise _no_name(text, "has an empty KIND")
    twice = next((kind for kind in kinds if kinds.count(kind) > 1), None)
    if twice is not None:
        raise _no_name(text, f"names the KIND '{twice}' twice")
    profile = CostProfile.analytic(_model(model), _CLUSTER, device, checkpointing=kinds or None)
    # The core knows the model's shape, but not its name.
    return with_name(profile, f"analytic-{_name_of(model)}-{profile.device}")


def _no_name(text: str, why: str) -> InvalidInputError:
    message = f"profile '{text}' {why}; write {ANALYTIC}MODEL:DEVICE[,KIND...]"
    return InvalidInputError(message, code="profile_unknown")


def _name_of(name_or_path: str) -> str:
    """Return a model's name: its own, its preset, the folder of its `config.json`, or the stem of a file."""
    if name_or_path in CostProfile.presets() or name_or_path in MODELS:
        return name_or_path
    path = _config_of(name_or_path).absolute()
    return path.parent.name if path.name == MODEL_CONFIG else path.stem


def _config_of(name: str) -> Path:
    """Return the path of a model's `config.json`, given the file or its folder."""
    path = Path(name)
    return path / MODEL_CONFIG if path.is_dir() else path


def _model(name_or_path: str) -> ModelShape:
    if name_or_path in CostProfile.presets():
        shape = CostProfile.preset(name_or_path).model
        assert shape is not None  # the core's tests check that every preset has one
        return shape
    if name_or_path in MODELS:
        return build_model_shape(from_hugging_face(MODELS[name_or_path]))
    path = _config_of(name_or_path)
    if path.name == name_or_path and not path.suffix and not path.exists():
        known = [*CostProfile.presets(), *MODELS]
        near = did_you_mean(name_or_path, known)
        message = (
            f"model '{name_or_path}' of the profile is no file or folder, and none of {', '.join(known)}; "
            f"name one of these, or the path of a config.json{near}"
        )
        raise InvalidInputError(message, code="profile_unknown")
    model = from_hugging_face(path)
    if model.sliding_window is not None:
        message = (
            f"sliding_window = {model.sliding_window} in the model's config.json is not predicted: profiles "
            "assume attention to whole sequences, which is the same up to that length; write null in a copy "
            "of the file"
        )
        raise InvalidInputError(message, code="model_unsupported")
    return build_model_shape(model)
