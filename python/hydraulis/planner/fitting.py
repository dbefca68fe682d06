"""Whether a cost profile is one of a run: of its model, type and kind of checkpointing."""

from hydraulis._core import CostProfile
from hydraulis.config.run import RunConfig
from hydraulis.errors import InvalidInputError
from hydraulis.planner.shape import shape_of


def check_profile(config: RunConfig, profile: CostProfile) -> None:
    """Refuse a profile whose times and caps are not those of the run; what it does not say is taken.

    Raises:
        InvalidInputError: it was measured with another model or type (code `profile_differs`), or under
            another kind of checkpointing (`checkpointing_differs`).
    """
    _check_workload(config, profile)
    _check_checkpointing(config, profile)


def _check_workload(config: RunConfig, profile: CostProfile) -> None:
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


def _check_checkpointing(config: RunConfig, profile: CostProfile) -> None:
    if profile.checkpointing != config.train.checkpointing:
        message = (
            f"profile '{profile.name}' of planner.profile = '{config.planner.profile}' was measured under "
            f"checkpointing '{profile.checkpointing}', and train.checkpointing is "
            f"'{config.train.checkpointing}'; set train.checkpointing = \"{profile.checkpointing}\", or "
            "measure a profile under the other kind"
        )
        raise InvalidInputError(message, code="checkpointing_differs")
