"""Fits a run's profile again, to the times that the run recorded."""

import json
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hydraulis._core import CostProfile, Plan, Scheme, fit_costs
from hydraulis.errors import InvalidInputError
from hydraulis.files import unreadable_error
from hydraulis.planner.profile import load_profile
from hydraulis.profile.document import TimeMeasurement
from hydraulis.progress import ProgressCallback, ignore_progress
from hydraulis.runtime.records.run_directory import PLANS, PROFILE, TIMES, require_run
from hydraulis.runtime.records.times import MicroBatchTimes

# Fewer micro-batches of a scheme are no better than the points that its profile was fitted to.
LEAST_MICRO_BATCHES = 16

# A micro-batch that ran: the lengths of its sequences, and the time of each stage, forward and backward.
Timed = tuple[list[int], list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefinedScheme:
    """How far a scheme's times were off before and after, in the median over the run's micro-batches."""

    scheme: str
    micro_batches: int
    error_before: float
    error_after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Refined:
    """A refined profile.

    Attributes:
        profile: the run's, with new coefficients where the run tells enough.
        schemes: those that it has new ones for.
        kept: those that the run used too little.
    """

    profile: CostProfile
    schemes: list[RefinedScheme]
    kept: list[str]

    def explain(self) -> str:
        """Say what has changed, a line for each scheme."""
        lines = [
            f"{entry.scheme}: {entry.micro_batches} micro-batches, off by {entry.error_before:.1%} before "
            f"and {entry.error_after:.1%} now, in the median"
            for entry in self.schemes
        ]
        lines += [f"{scheme}: as it was, the run used it for too few micro-batches" for scheme in self.kept]
        return "".join(line + "\n" for line in lines)


# In place of the times of a step in which memory was counted, which takes a part of them.
_NOT_TIMED = "null"


def refine(run_directory: Path, progress: ProgressCallback = ignore_progress) -> Refined:
    """Fit the profile of a run to its own plans and durations.

    Args:
        run_directory: with `profile.json`, `plans.jsonl` and `times.jsonl`.
        progress: called with what is done, how much of it is, and of how much; 0 where that is not known.

    Returns:
        The profile, and what has changed.

    Raises:
        InvalidInputError: a file cannot be read (code `file_unreadable`), is not what a run writes
            (`run_unreadable`, `profile_invalid`, `plan_invalid`), or no scheme ran often enough
            (`fit_underdetermined`).
    """
    require_run(run_directory)
    profile = load_profile(run_directory / PROFILE)
    timed: dict[Scheme, list[Timed]] = defaultdict(list)
    for plan, times in _iterations(run_directory, progress):
        _collect(plan, times, timed)
    # Before it was resumed, the run may have used schemes that its profile no longer has.
    used = {
        scheme: runs
        for scheme, runs in timed.items()
        if len(runs) >= LEAST_MICRO_BATCHES and str(scheme) in profile.schemes
    }
    if not used:
        message = (
            f"run '{run_directory}' has no scheme with {LEAST_MICRO_BATCHES} micro-batches to fit; "
            "refine a longer run"
        )
        raise InvalidInputError(message, code="fit_underdetermined")
    points = [
        (scheme, [(lengths, statistics.fmean(stages)) for lengths, stages in runs])
        for scheme, runs in used.items()
    ]
    progress(f"fitting {', '.join(map(str, used))}", 0, 0)
    document = json.loads(profile.to_json())
    entries = {entry["scheme"]: entry for entry in document["schemes"]}
    for scheme, fit in zip(used, fit_costs(points), strict=True):
        entry = entries[str(scheme)]
        measured = TimeMeasurement.of(fit, entry["forward_share"], _multipliers(used[scheme]))
        entry |= measured.entry()
    document["source"] += f"; times fitted again to the run {run_directory.name}"
    refined = CostProfile.from_json(json.dumps(document))
    changes = [
        RefinedScheme(
            scheme=str(scheme),
            micro_batches=len(runs),
            error_before=_median_error(profile, scheme, runs),
            error_after=_median_error(refined, scheme, runs),
        )
        for scheme, runs in used.items()
    ]
    kept = [text for text in profile.schemes if Scheme(text) not in used]
    return Refined(profile=refined, schemes=changes, kept=kept)


def _iterations(run_directory: Path, progress: ProgressCallback) -> Iterator[tuple[Plan, MicroBatchTimes]]:
    path = run_directory / TIMES
    plans, lines = map(Plan.from_json, _lines(run_directory / PLANS)), _lines(path)
    # A run that was ended between the two has one plan more.
    for number, (plan, line) in enumerate(zip(plans, lines, strict=False), 1):
        progress("reading steps", number - 1, len(lines))
        if line == _NOT_TIMED:
            continue
        try:
            times: MicroBatchTimes = json.loads(line)
            shape = [[len(stages) for stages in replica] for replica in times]
        except (TypeError, ValueError):
            shape = []
        if shape != [[replica.scheme.pp] * len(replica.micro_batches) for replica in plan.replicas]:
            message = f"file '{path}', line {number} does not match its plan; refine another run"
            raise InvalidInputError(message, code="run_unreadable")
        yield plan, times


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable_error(path, error) from error


def _collect(plan: Plan, times: MicroBatchTimes, timed: dict[Scheme, list[Timed]]) -> None:
    """Sort the times of one iteration by scheme; nothing ran of micro-batches without sequences."""
    for replica, by_micro_batch in zip(plan.replicas, times, strict=True):
        for sequences, stages in zip(replica.micro_batches, by_micro_batch, strict=True):
            if sequences:
                lengths = [int(plan.lengths[sequence]) for sequence in sequences]
                timed[replica.scheme].append((lengths, stages))


def _multipliers(runs: list[Timed]) -> list[float]:
    by_stage = [sum(times) for times in zip(*(stages for _, stages in runs), strict=True)]
    return [total / statistics.fmean(by_stage) for total in by_stage]


def _median_error(profile: CostProfile, scheme: Scheme, runs: list[Timed]) -> float:
    errors = [
        abs(profile.micro_batch_ms(scheme, lengths) / statistics.fmean(stages) - 1)
        for lengths, stages in runs
    ]
    return float(statistics.median(errors))
