"""The cost profile of a run: the one that it names, that of the run it goes on with, or a new one."""

from collections.abc import Callable, Sequence

import torch

from hydraulis._core import CostProfile, Scheme, Strategy
from hydraulis.config.planner import MIB
from hydraulis.config.run import RunConfig
from hydraulis.model.attention.varlen import choose_kernel
from hydraulis.planner.model_shape import check_profile, find_split_difference
from hydraulis.planner.profile import load_profile
from hydraulis.profile.links import measure_links, with_links
from hydraulis.profile.measure import MeasurementLimits, measure_profile
from hydraulis.runtime.checkpoint.resume import ResumedRun
from hydraulis.runtime.ranks.device import choose_device, device_name
from hydraulis.runtime.ranks.rank_zero import from_rank_zero
from hydraulis.runtime.records.run_directory import PROFILE
from hydraulis.runtime.worker import Worker


def saved_profile(
    config: RunConfig, resumed: ResumedRun | None, note: Callable[[str], None]
) -> CostProfile | None:
    """Read the profile that the configuration names, or that of a resumed run: plans stay what they were.

    Collective; None if there is neither.

    Args:
        config: of the run.
        resumed: the run to go on with; None to begin anew.
        note: told, on rank 0, why the resumed run's profile does not serve, and what `memory_note` says.

    Raises:
        InvalidInputError: the profile that the configuration names cannot be read (see `load_profile`), or
            was not measured for this run (see `check_profile`).
    """

    def text() -> str:
        profile = chosen_profile(config, resumed, note)
        return profile.to_json() if profile else ""

    read = from_rank_zero(text)
    return CostProfile.from_json(read) if read else None


def chosen_profile(
    config: RunConfig, resumed: ResumedRun | None, note: Callable[[str], None] = lambda _: None
) -> CostProfile | None:
    """Read the profile that `saved_profile` gives, on one rank; raises what that does."""
    if not config.planner.profile:
        profile = _of_resumed(config, resumed, note) if resumed else None
    else:
        profile = _named(config)
    said = memory_note(config, profile) if profile else ""
    if said:
        note(f"memory: {said}")
    return profile


def memory_note(config: RunConfig, profile: CostProfile) -> str:
    """Say whose memory counts where a saved profile's is not that of the configuration; else nothing."""
    given = config.planner.memory_mib
    if profile.memory_bytes == given * MIB:
        return ""
    memory = f"{profile.memory_bytes / MIB:,.10g} MiB of the profile"
    return f"{memory}; planner.memory_mib = {given:,} is not looked at"


def measurement_limits(config: RunConfig) -> MeasurementLimits:
    """Give the limits of a measurement that serves a run."""
    return MeasurementLimits(
        context=config.planner.context,
        memory_bytes=config.planner.memory_mib * MIB,
        memory=config.planner.memory,
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
    check: Callable[[CostProfile], None] = lambda _: None,
) -> CostProfile | None:
    """Measure what each scheme costs, and the links; None if that was stopped. See `measure_profile`."""
    profile = measure_profile(worker, schemes, limits, progress, is_stopped, check)
    return None if profile is None else with_links(profile, measure_links(worker.groups, worker.device))


def _named(config: RunConfig) -> CostProfile:
    profile = load_profile(config.planner.profile)
    check_profile(config, profile)
    return profile


def _of_resumed(config: RunConfig, resumed: ResumedRun, note: Callable[[str], None]) -> CostProfile | None:
    """Give the profile of a resumed run if it serves this one too; otherwise note why not."""
    profile = load_profile(resumed.run / PROFILE)
    differences = _differences(config, profile)
    if differences:
        note(f"the profile of {resumed.run} does not serve: {'; '.join(differences)}")
    return None if differences else profile


def _differences(config: RunConfig, profile: CostProfile) -> list[str]:
    """Say what a profile was measured with and the run has otherwise; what it does not state is taken."""
    missing = sorted(_named_schemes(config) - set(profile.schemes))
    pairs: list[tuple[str, str, str]] = [
        ("dtype", profile.dtype or config.train.dtype, config.train.dtype),
    ]
    split = find_split_difference(config, profile)
    pairs += [split] if split else []
    # A profile that no run measured is of other hardware as it is, and the earlier run took it all the same.
    if profile.attention is not None:
        device = choose_device(config.train.device)
        dtype: torch.dtype = getattr(torch, config.train.dtype)
        heads = torch.empty(0, 1, config.model.head_dim, dtype=dtype, device=device)
        pairs += [
            ("memory", f"{profile.memory_bytes / MIB:.10g} MiB", f"{config.planner.memory_mib} MiB"),
            ("device", profile.device, device_name(device)),
            ("attention", profile.attention, choose_kernel(heads, config.train.attention).name),
        ]
    # All of them: one more may make the largest stage larger, which sizes every rank's buffers, and times are
    # fitted together.
    anew = "all schemes are measured, since they share their buffers and the fit of their times"
    lacking = [f"it lacks {', '.join(missing)}, and {anew}"] if missing else []
    return lacking + [f"{name} was {old} and is {new}" for name, old, new in pairs if old != new]


def _named_schemes(config: RunConfig) -> set[str]:
    if config.planner.is_search:
        return set(config.planner.schemes)
    strategies = [Strategy(text) for text in config.planner.strategies]
    return {str(scheme) for strategy in strategies for scheme in strategy.schemes}
