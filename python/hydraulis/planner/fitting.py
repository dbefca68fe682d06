"""Whether a cost profile is one of a run: of its model, split over stages and type."""

from hydraulis._core import CostProfile, Scheme
from hydraulis.config.run import RunConfig
from hydraulis.errors import InvalidInputError
from hydraulis.planner.shape import layer_split_of, shape_of


def check_profile(config: RunConfig, profile: CostProfile) -> None:
    """Refuse a profile whose times and caps are not those of the run; what it does not say is taken.

    Raises:
        InvalidInputError: it was measured with another model, type or split of the layers over stages (code
            `profile_differs`).
    """
    differing = profile.model and profile.model.difference(shape_of(config.model))
    differing = differing or split_difference(config, profile)
    if profile.dtype not in (None, config.train.dtype):
        differing = ("dtype", str(profile.dtype), config.train.dtype)
    if differing:
        name, measured, wanted = differing
        message = (
            f"profile '{profile.name}' of planner.profile = '{config.planner.profile}' was measured with "
            f"{name} {measured or 'none'}, and the run has {wanted or 'none'}; measure a profile of this run "
            "(hydraulis profile RUN.toml), or leave planner.profile out"
        )
        raise InvalidInputError(message, code="profile_differs")


def split_difference(config: RunConfig, profile: CostProfile) -> tuple[str, str, str] | None:
    """Give the first scheme whose stages have other layers in a profile: what it is, there and in the run.

    A profile that does not say has them shared out by cost.
    """
    by_cost = layer_split_of(config.model)
    split = layer_split_of(config.model, config.train.stage_layers)
    for scheme in map(Scheme, profile.schemes):
        if 1 < scheme.pp <= config.model.num_hidden_layers:
            there = profile.stage_layers(scheme) or by_cost.stage_layers(scheme)
            here = split.stage_layers(scheme)
            if there != here:
                return f"stage_layers of {scheme}", str(there), str(here)
    return None
