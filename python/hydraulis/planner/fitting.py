"""Whether a cost profile is one of a run: of its model and type."""

from hydraulis._core import CostProfile
from hydraulis.config.run import RunConfig
from hydraulis.errors import InvalidInputError
from hydraulis.planner.shape import shape_of


def check_profile(config: RunConfig, profile: CostProfile) -> None:
    """Refuse a profile whose times and caps are not those of the run; what it does not say is taken.

    Raises:
        InvalidInputError: it was measured with another model or type (code `profile_differs`).
    """
    differing = profile.model and profile.model.difference(shape_of(config.model))
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
