"""The cost profile of a run: the one that it names, that of the run it goes on with, or a new one."""

from collections.abc import Callable, Sequence

from hydraulis._core import CostProfile, Scheme, Strategy
from hydraulis.config.run import RunConfig
from hydraulis.planner.fitting import check_profile
from hydraulis.planner.profile import load_profile
from hydraulis.profile.links import measure_links, with_links
from hydraulis.profile.measure import MeasurementLimits, measure_profile
from hydraulis.runtime.checkpoint.resume import ResumedRun
from hydraulis.runtime.rank_zero import from_rank_zero
from hydraulis.runtime.worker import Worker

FILE = "profile.json"
MIB = 1 << 20


def saved_profile(config: RunConfig, resumed: ResumedRun | None) -> CostProfile | None:
    """Read the profile that the configuration names, or that of a resumed run: plans stay what they were.

    Collective; None if there is neither.

    Raises:
        InvalidInputError: the profile that the configuration names cannot be read (see `load_profile`), or
            was not measured for this run (see `check_profile`).
    """

    def text() -> str:
        profile = chosen_profile(config, resumed)
        return profile.to_json() if profile else ""

    read = from_rank_zero(text)
    return CostProfile.from_json(read) if read else None


def chosen_profile(config: RunConfig, resumed: ResumedRun | None) -> CostProfile | None:
    """Read the profile that `saved_profile` gives, on one rank; raises what that does."""
    path = config.planner.profile
    if path:
        profile = load_profile(path)
        check_profile(config, profile)
        return profile
    text = _of_resumed(config, resumed) if resumed else ""
    return CostProfile.from_json(text) if text else None


def measurement_limits(config: RunConfig) -> MeasurementLimits:
    """Give the limits of a measurement that serves a run."""
    return MeasurementLimits(
        context=config.planner.context,
        memory_bytes=config.planner.memory_mib * MIB,
        longest=config.data.max_tokens,
        micro_batch_tokens=config.data.batch_tokens,
        seconds=config.planner.profile_seconds,
    )


def measured_profile(
    worker: Worker,
    schemes: Sequence[Scheme],
    limits: MeasurementLimits,
    progress: Callable[[float], None],
    is_stopped: Callable[[], bool],
) -> CostProfile | None:
    """Measure what each scheme costs, and the links; None if that was stopped. See `measure_profile`."""
    profile = measure_profile(worker, schemes, limits, progress, is_stopped)
    return None if profile is None else with_links(profile, measure_links(worker.groups, worker.device))


def _of_resumed(config: RunConfig, resumed: ResumedRun) -> str:
    """Give the profile of a resumed run if it serves this one too."""
    profile = load_profile(resumed.run / FILE)
    known = set(profile.schemes) >= _named_schemes(config)
    return profile.to_json() if known and profile.checkpointing == config.train.checkpointing else ""


def _named_schemes(config: RunConfig) -> set[str]:
    if config.planner.is_search:
        return set(config.planner.schemes)
    strategies = [Strategy(text) for text in config.planner.strategies]
    return {str(scheme) for strategy in strategies for scheme in strategy.schemes}
