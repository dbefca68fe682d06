"""Fits a run's profile to the recorded times of the run."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hydraulis._core import CostProfile, Plan, Scheme
from hydraulis.errors import InvalidInputError
from hydraulis.files import read_regular, unreadable_error
from hydraulis.planner.devices import device_profiles, device_rates, is_same_device
from hydraulis.planner.profile import load_profile
from hydraulis.planner.profile_document import with_times
from hydraulis.profile.fit import TimedMicroBatch, fit_times
from hydraulis.progress import ProgressCallback, ignore_progress
from hydraulis.runtime.records.measured_times import MicroBatchTimes, at_full_rate
from hydraulis.runtime.records.replaced_files import replaced_step
from hydraulis.runtime.records.resumed_records import LOST, read_record, read_strategy
from hydraulis.runtime.records.run_directory import METRICS, PLANS, PROFILE, TIMES, require_run
from hydraulis.text.documents import parse_json

# A fit to fewer micro-batches of a scheme is no better than the fit of the profile.
LEAST_MICRO_BATCHES = 16


class _Timed(NamedTuple):
    """A scheme on one of the profile's devices."""

    device: int
    scheme: Scheme


# The timed micro-batches of each scheme and device.
_Runs = dict[_Timed, list[TimedMicroBatch]]


class _Devices(NamedTuple):
    """The devices of a profile that a run planned with.

    Attributes:
        rates: Full rate of each device.
        numbers: Number of each device in the profile to refine; None if that has no such device.
    """

    rates: list[float]
    numbers: list[int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefinedScheme:
    """The prediction error of a scheme before and after.

    Attributes:
        scheme: Scheme as text, with its device if the profile has several.
        micro_batches: Number of fitted micro-batches.
        error_before: Median relative error of the run's profile.
        error_after: Median relative error of the refined profile.
    """

    scheme: str
    micro_batches: int
    error_before: float
    error_after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Refined:
    """A refined profile.

    Attributes:
        profile: Profile of the run, with new coefficients for the refined schemes.
        schemes: Refined schemes.
        unchanged: Schemes with too few micro-batches in the run, named like those.
    """

    profile: CostProfile
    schemes: list[RefinedScheme]
    unchanged: list[str]

    def explain(self) -> str:
        """Describe the changes, one line per scheme."""
        lines = [
            f"{entry.scheme}: {entry.micro_batches} micro-batches, median error {entry.error_before:.1%} "
            f"before and {entry.error_after:.1%} now"
            for entry in self.schemes
        ]
        lines += [
            f"{scheme}: unchanged, the run has too few of its micro-batches" for scheme in self.unchanged
        ]
        return "".join(line + "\n" for line in lines)


def refine(run_directory: Path, progress: ProgressCallback = ignore_progress) -> Refined:
    """Fit the profile of a run to its own plans and durations.

    Args:
        run_directory: Directory of the run, with `profile.json`, `metrics.jsonl`, `plans.jsonl` and
            `times.jsonl`.
        progress: Callback that receives the current task, the completed steps and all steps, 0 if unknown.

    Returns:
        The refined profile and its changes.

    Raises:
        InvalidInputError: A file cannot be read (code `file_unreadable`) or is malformed (`run_unreadable`,
            `profile_invalid`, `plan_invalid`), or no scheme has enough micro-batches
            (`fit_underdetermined`).
    """
    require_run(run_directory)
    profile = load_profile(run_directory / PROFILE)
    used = _used(run_directory, profile, progress)
    schemes = {one.scheme for one in used}
    progress(f"fitting {', '.join(map(str, sorted(schemes)))}", 0, 0)
    refined = profile
    for device in sorted({one.device for one in used}):
        runs_of = {one.scheme: runs for one, runs in used.items() if one.device == device}
        note = f"times fitted again to the run {run_directory.name}"
        refined = with_times(refined, fit_times(runs_of), note, device)
    before, after = device_profiles(profile), device_profiles(refined)
    changes = [
        RefinedScheme(
            scheme=_scheme_on(one.scheme, one.device, after),
            micro_batches=len(runs),
            error_before=_median_error(before[one.device], one.scheme, runs),
            error_after=_median_error(after[one.device], one.scheme, runs),
        )
        for one, runs in used.items()
    ]
    unchanged = [
        _scheme_on(Scheme(text), device, before)
        for device in range(len(before))
        for text in profile.schemes
        if _Timed(device, Scheme(text)) not in used
    ]
    return Refined(profile=refined, schemes=changes, unchanged=unchanged)


def _used(run_directory: Path, profile: CostProfile, progress: ProgressCallback) -> _Runs:
    """Read the times of the profile's schemes that the run has enough micro-batches of.

    Raises:
        InvalidInputError: There is no such scheme (code `fit_underdetermined`).
    """
    timed: _Runs = defaultdict(list)
    planned = _planned_devices(run_directory, profile)
    for step, plan, times in _iterations(run_directory, progress):
        devices = next(devices for last, devices in planned if step <= last)
        _collect(plan, times, devices, timed)
    # Before it resumed, the run may have used schemes that are not in its current profile.
    used = {
        one: runs
        for one, runs in timed.items()
        if len(runs) >= LEAST_MICRO_BATCHES and str(one.scheme) in profile.schemes
    }
    if not used:
        missing = (
            f"scheme with {LEAST_MICRO_BATCHES} micro-batches to fit; refine a longer run"
            if timed
            else "step with a plan and times of micro-batches; refine another run"
        )
        message = f"run '{run_directory}' has no {missing}"
        raise InvalidInputError(message, code="fit_underdetermined")
    return used


def _planned_devices(run_directory: Path, profile: CostProfile) -> list[tuple[float, _Devices]]:
    """Return the last step of each profile of a run, the earliest first, with its devices.

    A resumed run may have another profile, which numbers the devices differently.
    """
    replaced = {replaced_step(PROFILE, path.name): path for path in run_directory.iterdir()}
    profiles = [(float(last), load_profile(path)) for last, path in replaced.items() if last is not None]
    names = [one.device for one in device_profiles(profile)]
    found = []
    for last, one in [*sorted(profiles, key=lambda entry: entry[0]), (math.inf, profile)]:
        own = [device.device for device in device_profiles(one)]
        # An earlier profile may have the name of a data sheet where this one has torch's.
        numbers = [
            next((number for number, other in enumerate(names) if is_same_device(name, other)), None)
            for name in own
        ]
        found.append((last, _Devices(device_rates(one), numbers)))
    return found


def _iterations(
    run_directory: Path, progress: ProgressCallback
) -> Iterator[tuple[int, Plan, MicroBatchTimes]]:
    """Yield each recorded step with its plan and times."""
    path = run_directory / TIMES
    metrics, plans, lines = (_lines(run_directory / name) for name in (METRICS, PLANS, TIMES))
    # A run that ended between its writes of a step has one more of some lines.
    for number, (metric, plan, line) in enumerate(zip(metrics, plans, lines, strict=False), 1):
        progress("reading steps", number - 1, len(lines))
        if LOST not in (plan, line):
            step = _step(metric, f"file '{run_directory / METRICS}', line {number}")
            yield (step, *_timed(Plan.from_json(plan), line, f"file '{path}', line {number}"))


def _step(metric: str, place: str) -> int:
    """Read the step from a line of `metrics.jsonl`; after lost records it is above the line's number."""
    found = read_record(metric.encode(), read_strategy)
    if found is None:
        message = f"{place} has no step; refine another run"
        raise InvalidInputError(message, code="run_unreadable")
    return found[0]


def _timed(plan: Plan, line: str, place: str) -> tuple[Plan, MicroBatchTimes]:
    """Read the times of a plan's micro-batches from a line of `times.jsonl`."""
    try:
        times: MicroBatchTimes = parse_json(line)
        shape = [[len(stages) for stages in replica] for replica in times]
        is_time = all(0 <= ms < math.inf for replica in times for stages in replica for ms in stages)
    except (TypeError, ValueError):
        shape, is_time = [], False
    if not is_time or shape != [[one.scheme.pp] * len(one.micro_batches) for one in plan.replicas]:
        message = f"{place} does not match its plan; refine another run"
        raise InvalidInputError(message, code="run_unreadable")
    return plan, times


def _lines(path: Path) -> list[str]:
    """Return the complete lines; a running training may be writing the last one."""
    try:
        return read_regular(path).decode().split("\n")[:-1]
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable_error(path, error) from error


def _collect(plan: Plan, times: MicroBatchTimes, devices: _Devices, timed: _Runs) -> None:
    """Sort the times of one iteration, at full rate; a micro-batch without sequences is not run."""
    for replica, planned, by_micro_batch in at_full_rate(plan, times, devices.rates):
        device = devices.numbers[planned]
        if device is None:
            continue
        for sequences, stages in zip(replica.micro_batches, by_micro_batch, strict=True):
            if sequences:
                lengths = [int(plan.lengths[sequence]) for sequence in sequences]
                timed[_Timed(device, replica.scheme)].append((lengths, stages))


def _scheme_on(scheme: Scheme, device: int, devices: Sequence[CostProfile]) -> str:
    """Return the scheme's text, with its device if there are several."""
    return str(scheme) if len(devices) == 1 else f"{scheme} on {devices[device].device}"


def _median_error(profile: CostProfile, scheme: Scheme, runs: Sequence[TimedMicroBatch]) -> float:
    errors = [
        abs(profile.micro_batch_ms(scheme, lengths) / statistics.fmean(stages) - 1)
        for lengths, stages in runs
    ]
    return float(statistics.median(errors))
