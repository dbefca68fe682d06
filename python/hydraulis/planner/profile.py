"""Cost profiles: a shipped one by its name, or your own from its JSON file."""

from pathlib import Path

from hydraulis._core import Cluster, CostProfile, LinkRates, ModelShape, Network
from hydraulis.config.hugging_face.read import MODEL_CONFIG, from_hugging_face
from hydraulis.config.planner import LINK_FROM_PROFILE, NO_LINK, parse_link_rates
from hydraulis.errors import InvalidInputError
from hydraulis.files import unreadable_error
from hydraulis.planner.model_shape import build_model_shape
from hydraulis.planner.profile_document import with_name
from hydraulis.text.nearest import did_you_mean

_ANALYTIC = "analytic:"
# Nodes as most are built; of schemes no more than the widest are made.
_CLUSTER = Cluster(gpus=256, gpus_per_node=8)


def load_profile(name_or_path: str | Path) -> CostProfile:
    """Read a preset by its name, or a profile's JSON file by its path; or predict one.

    A preset's name wins over a file of the same name; write `./name` for the file.

    Args:
        name_or_path: one of `CostProfile.presets()`, a path, or `analytic:MODEL:DEVICE[,KIND...]`: MODEL is
            the path of a `config.json` of Hugging Face or of its folder, or the name of a preset, whose model
            is taken, DEVICE one of `CostProfile.devices()`, and each KIND a kind of checkpointing that
            schemes may have, `none` if none is named.

    Returns:
        The profile, checked.

    Raises:
        InvalidInputError: The name is neither a preset nor a file (code `profile_unknown`), the file cannot
            be read (`file_unreadable`), its profile is invalid (`profile_invalid`), or the model, the device
            or a kind of an analytic profile is refused (`profile_unknown`, `model_unsupported`,
            `config_value`, `argument_invalid`).

    >>> load_profile("llama-32b-a800").gpus_per_node
    8
    >>> load_profile("analytic:llama-32b-a800:H100").name
    'analytic-llama-32b-a800-H100-80GB'
    >>> load_profile("analytic:llama-7b-a800:H100,none,full").schemes[-1]
    '<tp16,cp2,full>'
    """
    if isinstance(name_or_path, str) and name_or_path.startswith(_ANALYTIC):
        return _analytic(name_or_path)
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
        # The core knows the field but not the file.
        message = f"file '{path}': {error}"
        if path.suffix == ".toml":
            message = f"file '{path}' is no cost profile; measure one with hydraulis profile"
        raise InvalidInputError(message, code=error.code) from None


def _preset(name: str) -> CostProfile:
    try:
        return CostProfile.preset(name)
    except InvalidInputError as error:
        # The core lists the names, and does not compare them.
        raise _with_nearest(error, name) from None


def _with_nearest(error: InvalidInputError, name: str) -> InvalidInputError:
    message = f"{error}{did_you_mean(name, CostProfile.presets())}"
    return InvalidInputError(message, code=error.code)


def _analytic(text: str) -> CostProfile:
    model, _, rest = text.removeprefix(_ANALYTIC).rpartition(":")
    device, *kinds = rest.split(",")
    if not (model and device):
        raise _no_name(text, "names no model and device")
    if "" in kinds:
        raise _no_name(text, "has a KIND without a name")
    twice = next((kind for kind in kinds if kinds.count(kind) > 1), None)
    if twice is not None:
        raise _no_name(text, f"names the KIND '{twice}' twice")
    profile = CostProfile.analytic(_model(model), _CLUSTER, device, checkpointing=kinds or None)
    # The core knows the model's shape, but not its name.
    return with_name(profile, f"analytic-{_name_of(model)}-{profile.device}")


def _no_name(text: str, why: str) -> InvalidInputError:
    message = f"profile '{text}' {why}; write {_ANALYTIC}MODEL:DEVICE[,KIND...]"
    return InvalidInputError(message, code="profile_unknown")


def _name_of(name_or_path: str) -> str:
    """Name a model as people do: by preset, by the folder of a `config.json`, or by another file."""
    if name_or_path in CostProfile.presets():
        return name_or_path
    path = _config_of(name_or_path).absolute()
    return path.parent.name if path.name == MODEL_CONFIG else path.stem


def _config_of(name: str) -> Path:
    """Take a model's folder for the `config.json` in it."""
    path = Path(name)
    return path / MODEL_CONFIG if path.is_dir() else path


def _model(name_or_path: str) -> ModelShape:
    if name_or_path in CostProfile.presets():
        shape = CostProfile.preset(name_or_path).model
        assert shape is not None  # the core's tests say that every preset has one
        return shape
    model = from_hugging_face(_config_of(name_or_path))
    if model.sliding_window is not None:
        message = (
            f"sliding_window = {model.sliding_window} in the model's config.json is not predicted: profiles "
            "assume attention to whole sequences, which is the same up to that length; write null in a copy "
            "of the file"
        )
        raise InvalidInputError(message, code="model_unsupported")
    return build_model_shape(model)


def resolve_link_rates(field: str, text: str, profile: CostProfile, cluster: Cluster) -> LinkRates | None:
    """Give the rates that a text asks for.

    Args:
        field: that the text is the value of, for messages.
        text: `profile` for what the profile has measured, `none`, or `NODE[,GPU[,MESSAGE]]`.
        profile: with or without measured links.
        cluster: to be planned for.

    Returns:
        The rates; None for `none`, for one rank alone, and where the profile has none for the cluster.

    Raises:
        InvalidInputError: The text is none of these (code `config_value`), or the rates that the profile
            measured are beyond the limits (`argument_invalid`).
    """
    if text == NO_LINK:
        return None
    rates = (
        LinkRates.measured(profile, cluster) if text == LINK_FROM_PROFILE else parse_link_rates(field, text)
    )
    return None if cluster.gpus == 1 else rates


def resolve_network(text: str, profile: CostProfile, rates: LinkRates) -> Network:
    """Give what carries messages between stages, by the links that a text asks for.

    Args:
        text: as of `resolve_link_rates`.
        profile: with or without measured links.
        rates: that the text stands for.

    Returns:
        For `profile` the wires that it has measured point to point; where it has none, and for stated rates,
        wires of the links' rates.

    Raises:
        InvalidInputError: the profile does not say of which model it is (code `profile_invalid`), or what it
            has measured is no rate or latency (`argument_invalid`).
    """
    return (Network.measured if text == LINK_FROM_PROFILE else Network.of_profile)(profile, rates)
