"""The cost profile of a run: the configured profile, that of the resumed run, or a measured one."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from hydraulis._core import Cluster, CostProfile, Scheme, Strategy
from hydraulis.config.run import RunConfig
from hydraulis.errors import InvalidInputError
from hydraulis.model.attention.varlen import choose_kernel
from hydraulis.planner.devices import device_profiles, join_devices, number_of_device
from hydraulis.planner.model_shape import (
    check_profile,
    find_split_difference,
    find_type_differences,
)
from hydraulis.planner.profile import load_profile
from hydraulis.planner.profile_document import stated_optimizer_bytes, with_links
from hydraulis.profile.links import measure_links
from hydraulis.profile.measure import MeasurementLimits, measure_profile
from hydraulis.runtime.checkpoint.resume import ResumedRun
from hydraulis.runtime.memory.out_of_memory import naming_out_of_memory
from hydraulis.runtime.ranks.device import choose_device, device_name
from hydraulis.runtime.ranks.rank_zero import from_rank_zero
from hydraulis.runtime.records.run_directory import PROFILE
from hydraulis.runtime.state.parameters import ModelParameters
from hydraulis.runtime.state.state_bytes import StateBytes
from hydraulis.runtime.worker import Worker
from hydraulis.text.values import MIB


def saved_profile(
    config: RunConfig, cluster: Cluster, resumed: ResumedRun | None, note: Callable[[str], None]
) -> CostProfile | None:
    """Read the configured profiles, or else that of a resumed run, so that plans do not change. Collective.

    Args:
        config: Configuration of the run.
        cluster: Cluster of the run's ranks.
        resumed: Run to continue; None for a new run.
        note: Callback on rank 0 for messages: why the resumed run's profile does not fit, and `memory_note`.

    Returns:
        The profile, equal on every rank; None if there is none.

    Raises:
        InvalidInputError: A configured profile cannot be read (see `load_profile`) or was not measured for
            this run (see `check_profile`), or with less optimizer state (code `profile_mismatch`), or the
            profiles do not compare (see `join_devices`).
    """

    def text() -> str | None:
        profile = chosen_profile(config, cluster, resumed, note)
        return profile.to_json() if profile else None

    read = from_rank_zero(text)
    return CostProfile.from_json(read) if read else None


def chosen_profile(
    config: RunConfig,
    cluster: Cluster,
    resumed: ResumedRun | None,
    note: Callable[[str], None] = lambda _: None,
) -> CostProfile | None:
    """Read the profile of `saved_profile` on a single rank, with the same errors."""
    if not config.planner.profile:
        profile = _resumed_profile(config, resumed, note) if resumed else None
    else:
        profile = _configured_profile(config, cluster)
    memory = memory_note(config, profile) if profile else ""
    if memory:
        note(f"memory: {memory}")
    return profile


def memory_note(config: RunConfig, profile: CostProfile) -> str:
    """Return a message if the profile's memory differs from the configuration's, otherwise ''.

    The memory of several devices differs anyway.
    """
    given = config.planner.memory_mib
    if given is None or profile.other_devices or profile.memory_bytes == given * MIB:
        return ""
    memory = f"{profile.memory_bytes / MIB:,.10g} MiB of the profile"
    return f"{memory}; planner.memory_mib = {given:,} is not used"


def measurement_limits(config: RunConfig) -> MeasurementLimits:
    """Return the limits of a measurement for a run."""
    return MeasurementLimits(
        context=config.planner.context,
        memory_bytes=config.planner.memory_bytes,
        host_memory_bytes=config.planner.host_memory_bytes,
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
    """Measure the costs of each scheme and the links; None if stopped. See `measure_profile`.

    Raises:
        HydraulisError: The device has no memory left (code `out_of_device_memory`); on this rank alone.
    """
    with naming_out_of_memory(worker, dist.get_rank()):
        profile = measure_profile(worker, schemes, limits, progress, is_stopped, check)
        return None if profile is None else with_links(profile, measure_links(worker.groups, worker.device))


def _configured_profile(config: RunConfig, cluster: Cluster) -> CostProfile:
    named = {"planner.profile": config.planner.profile}
    named |= {f"planner.device_profiles[{i}]": name for i, name in enumerate(config.planner.device_profiles)}
    profiles = []
    for key, name in named.items():
        source, profile = f"{key} = '{name}'", load_profile(name)
        check_profile(config, source, profile)
        _check_optimizer(config, source, profile)
        profiles.append(profile)
    first, *others = profiles
    try:
        joined = join_devices(first, others, cluster.gpus_per_node)
    except InvalidInputError as error:
        sources = " and ".join(f"{key} = '{name}'" for key, name in named.items())
        message = f"{sources}: {error}"
        raise InvalidInputError(message, code="profile_mismatch") from error
    devices = [profile.device for profile in device_profiles(joined)]
    twice = next((device for device in devices if devices.count(device) > 1), None)
    if twice is not None:
        message = (
            f"planner.profile and planner.device_profiles have two profiles of {twice}: give one profile of "
            "each device"
        )
        raise InvalidInputError(message, code="profile_mismatch")
    return joined


def _check_optimizer(config: RunConfig, source: str, profile: CostProfile) -> None:
    """Refuse a measured profile with less optimizer state than the run has: its caps would be too large.

    Args:
        config: Configuration of the run.
        source: Key and value that name the profile, for the message.
        profile: Profile to check.

    Raises:
        InvalidInputError: The state is larger than the profile's (code `profile_mismatch`).
    """
    parameters = ModelParameters.from_config(config.model, config.train.frozen)
    needed = StateBytes.of_run(config).optimizer(parameters.elements)
    stated = stated_optimizer_bytes(profile)
    if profile.attention is None or needed <= stated:
        return
    message = (
        f"profile '{profile.name}' of {source} was measured with {stated:,} bytes of master parameters, "
        f"gradients and optimizer state, and the run with optimizer.name = '{config.optimizer.name}' has "
        f"{needed:,}; measure a profile of this run (hydraulis profile RUN.toml), or leave this one out"
    )
    raise InvalidInputError(message, code="profile_mismatch")


def _resumed_profile(
    config: RunConfig, resumed: ResumedRun, note: Callable[[str], None]
) -> CostProfile | None:
    """Return the profile of a resumed run if it fits this run; otherwise note the differences."""
    profile = load_profile(resumed.run / PROFILE)
    differences = _differences(config, profile)
    if differences:
        note(f"the profile of {resumed.run} does not fit this run: {'; '.join(differences)}")
    return None if differences else profile


def _differences(config: RunConfig, profile: CostProfile) -> list[str]:
    """List the differences between the conditions of a profile, as far as stated, and those of the run."""
    missing = sorted(_configured_schemes(config) - set(profile.schemes))
    pairs = find_type_differences(config, profile)
    split = find_split_difference(config, profile)
    pairs += [split] if split else []
    of_devices = device_profiles(profile)
    # A profile without an attention kernel was not measured by a run, and the earlier run accepted it.
    if any(one.attention is not None for one in of_devices):
        pairs += _device_differences(config, of_devices)
    # A new scheme can also enlarge the staging of transfers, which every rank has.
    reason = "all schemes are measured, because their times are fitted together"
    lacking = [f"it lacks {', '.join(missing)}, and {reason}"] if missing else []
    return lacking + [f"{name} was {old} and is {new}" for name, old, new in pairs if old != new]


def _device_differences(config: RunConfig, of_devices: Sequence[CostProfile]) -> list[tuple[str, str, str]]:
    """List the differences of memory, device and attention between this rank and its device's profile.

    A device that is none of several has none: it is refused once the devices of all ranks are known.
    """
    device = choose_device(config.train.device)
    name = device_name(device)
    number = number_of_device([one.device for one in of_devices], name)
    if number is None and len(of_devices) > 1:
        return []
    own = of_devices[number or 0]
    if own.attention is None:
        return []
    dtype: torch.dtype = getattr(torch, config.train.dtype)
    heads = torch.empty(0, 1, config.model.head_dim, dtype=dtype, device=device)
    return [
        ("memory", f"{own.memory_bytes / MIB:.10g} MiB", f"{config.planner.memory_mib} MiB"),
        ("device", own.device if number is None else name, name),
        ("attention", own.attention, choose_kernel(heads, config.train.attention).name),
    ]


def _configured_schemes(config: RunConfig) -> set[str]:
    if config.planner.is_search:
        return set(config.planner.schemes)
    strategies = [Strategy(text) for text in config.planner.strategies]
    return {str(scheme) for strategy in strategies for scheme in strategy.schemes}
