"""The records of a run directory, read for its report."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from hydraulis._core import CostProfile, Plan, Span
from hydraulis.data.analysis import Analysis
from hydraulis.errors import HydraulisError, InvalidInputError
from hydraulis.files import read_regular, unreadable_error
from hydraulis.progress import ignore_progress
from hydraulis.runtime.records.evaluation import Evaluation
from hydraulis.runtime.records.metrics import StepMetrics, shared_devices_note
from hydraulis.runtime.records.replaced_files import replaced_step
from hydraulis.runtime.records.resumed_records import LOST, read_record
from hydraulis.runtime.records.run_directory import (
    ANALYSIS,
    EVALUATIONS,
    METRICS,
    PLANS,
    PROFILE,
    RUN_CONFIG,
    SAMPLES,
    TRACE,
    not_a_run,
    require_run,
)
from hydraulis.runtime.records.samples import Samples
from hydraulis.runtime.records.trace import MEASURED, PLANNED, durations, traced_step
from hydraulis.text.documents import parse_json
from hydraulis.text.values import format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from hydraulis.progress import ProgressCallback

_T = TypeVar("_T")
_S = TypeVar("_S", Evaluation, Samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """The step with a recorded timeline.

    Attributes:
        step: Number of the step, counted from 1.
        plan: Plan of the step.
        timelines: Spans of each replica, as `planned` and as `measured`.
    """

    step: int
    plan: Plan
    timelines: dict[str, list[list[Span]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run with at least one step, finished or not.

    Attributes:
        path: Run directory.
        metrics: Metrics of each recorded step, in order.
        plans: Plans of these steps, without lost ones.
        planned_steps: Number of the step of each plan.
        profile: Cost profile of the plans after `changed_after`.
        changed_after: Number of the last step with another profile or `planner.link`; 0 without one.
        strategies: Strategies that the planner chose from.
        num_steps: Number of steps of the whole run.
        config: Effective configuration: values by key, by section.
        traced: Step with a recorded timeline; None if there is none.
        evaluations: Evaluations on held-out data, in order.
        samples: Texts that the model continued, in order.
        analysis: Analysis of the data; None if it was not recorded.
        notes: Records that are left out because they were lost or cannot be read, and the mark of a run
            whose ranks shared devices.
    """

    path: Path
    metrics: list[StepMetrics]
    plans: list[Plan]
    planned_steps: list[int]
    profile: CostProfile
    changed_after: int
    strategies: list[str]
    num_steps: int
    config: dict[str, dict[str, Any]]
    traced: TracedStep | None
    evaluations: list[Evaluation]
    samples: list[Samples]
    analysis: Analysis | None
    notes: list[str]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of every sequence that was trained, int64 of shape (sequences,)."""
        return np.concatenate([plan.lengths for plan in self.plans])


def read_run(path: Path, progress: ProgressCallback = ignore_progress) -> Run:
    """Read a run directory; records that cannot be read are left out and noted.

    Args:
        path: Run directory.
        progress: Callback during reading, with the activity and its progress.

    Raises:
        InvalidInputError: The metrics, the profile or the configuration cannot be read (code
            `file_unreadable`), or they are damaged, or the folder was not written by a run
            (`run_unreadable`).
    """
    require_run(path)
    notes: list[str] = []
    read = _read_steps(path, notes, progress)
    metrics, plans = list(read.metrics.values()), read.plans
    shared = shared_devices_note(max(one.ranks_per_device for one in metrics))
    notes += [shared] if shared else []
    profile = _parsed(path / PROFILE, CostProfile.from_json, _text(path / PROFILE))
    config = _parsed(path / RUN_CONFIG, parse_json, _text(path / RUN_CONFIG))
    return Run(
        path=path,
        metrics=metrics,
        plans=list(plans.values()),
        planned_steps=list(plans),
        profile=profile,
        strategies=_parsed(path / RUN_CONFIG, _strategies, config),
        num_steps=_parsed(path / RUN_CONFIG, _num_steps, config),
        changed_after=_changed_after(path, config["planner"].get("link"), notes),
        config={name: table for name, table in config.items() if isinstance(table, dict)},
        traced=_optional(path / TRACE, partial(_traced, plans), notes),
        evaluations=_up_to(metrics[-1].step, path / EVALUATIONS, Evaluation.from_json, notes),
        samples=_up_to(metrics[-1].step, path / SAMPLES, Samples.from_json, notes),
        analysis=_optional(path / ANALYSIS, Analysis.from_json, notes),
        notes=notes,
    )


class _Steps(NamedTuple):
    """Metrics and plans of steps, by the number of the step and in order."""

    metrics: dict[int, StepMetrics]
    plans: dict[int, Plan]


def _read_steps(path: Path, notes: list[str], progress: ProgressCallback) -> _Steps:
    """Read the metrics of all steps, and the plans that belong to them."""
    if not any((path / name).exists() for name in (METRICS, PLANS)):
        raise _without_steps(path)
    metrics = _records(path / METRICS, StepMetrics.from_json, notes, progress)
    plans = _records(path / PLANS, Plan.from_json, notes, progress) if (path / PLANS).exists() else []
    # The n-th lines of both files belong together; of a step that was repeated the last lines count.
    found = {one.step: place for place, one in enumerate(metrics) if one is not None}
    if not found:
        raise not_a_run(path, notes[0]) if notes else _without_steps(path)
    lost = max(found) - min(found) + 1 - len(found)
    if lost > 0:
        notes.append(
            f"{METRICS} lacks the metrics of {format_count(lost, 'step')} between the first and the last one"
        )
    steps = _Steps({}, {})
    for step in sorted(found):
        one = steps.metrics[step] = cast("StepMetrics", metrics[found[step]])
        plan = plans[found[step]] if found[step] < len(plans) else None
        if plan is not None and (len(plan.lengths), plan.lengths.sum()) == (one.sequences, one.tokens):
            steps.plans[step] = plan
    # A running training may have written a step's metrics and not yet its plan.
    missing = len(steps.metrics) - len(steps.plans) - (max(found) not in steps.plans)
    if missing > 0:
        notes.append(f"{PLANS} lacks the plans of {format_count(missing, 'step')}")
    return steps


def _without_steps(path: Path) -> HydraulisError:
    return not_a_run(path, f"no step is recorded in {METRICS} and {PLANS}; train at least one")


def _optional(path: Path, parse: Callable[[str], _T], notes: list[str]) -> _T | None:
    """Parse a file that a report can do without; None if it is absent, or unreadable, which is noted."""
    if not path.exists():
        return None
    try:
        return cast("_T", _parsed(path, parse, _text(path)))
    except InvalidInputError as error:
        notes.append(f"{path.name} is left out: {_reason(error.__cause__ or error)}")
        return None


def _traced(plans: Mapping[int, Plan], text: str) -> TracedStep:
    document = parse_json(text)
    step = traced_step(document)
    if step not in plans:
        message = f"step {step} has no plan in {PLANS}"
        raise ValueError(message)
    plan = plans[step]
    # From the trace, not the profile, whose times may have been corrected when the step was planned.
    timelines = {name: _timeline(plan, name, document) for name in (PLANNED, MEASURED)}
    return TracedStep(step=step, plan=plan, timelines=timelines)


def _timeline(plan: Plan, name: str, document: dict[str, Any]) -> list[list[Span]]:
    return plan.measured_timeline(durations(plan, document, name))


def _records(
    path: Path, parse: Callable[[str], _T], notes: list[str], progress: ProgressCallback = ignore_progress
) -> list[_T | None]:
    """Read a file with one record on each line; None for a lost or unreadable one, which is noted.

    The last line counts once it is complete, because a running training may be writing it.
    """
    lines = _bytes(path).split(b"\n")[:-1]
    found: list[_T | None] = []
    broken = []
    for done, line in enumerate(lines):
        progress(f"reading {path.name}", done, len(lines))
        found.append(read_record(line, parse))
        if found[-1] is None and line != LOST.encode():
            broken.append(done + 1)
    if broken:
        several = f" and {format_count(len(broken) - 1, 'other')}" if len(broken) > 1 else ""
        notes.append(f"line {broken[0]}{several} of {path.name} cannot be read and is left out")
    return found


def _up_to(last: int, path: Path, parse: Callable[[str], _S], notes: list[str]) -> list[_S]:
    """Read the records up to a step; a running training may have added later ones meanwhile."""
    if not path.exists():
        return []
    return [one for one in _records(path, parse, notes) if one is not None and one.step <= last]


def _strategies(config: Any) -> list[str]:
    return [str(strategy) for strategy in config["planner"]["strategies"]]


def _num_steps(config: Any) -> int:
    return int(config["train"]["steps"])


def _changed_after(path: Path, link: str | None, notes: list[str]) -> int:
    """Return the last step for which a resumed run keeps another profile, or another `planner.link`."""
    names = _names(path)
    steps = [replaced_step(PROFILE, name) for name in names]
    for name in names:
        step = replaced_step(RUN_CONFIG, name)
        # A configuration of another version may lack the link.
        before = None if step is None else _optional(path / name, _planner_link, notes)
        if None not in (before, link) and before != link:
            steps.append(step)
    return max((step for step in steps if step is not None), default=0)


def _planner_link(text: str) -> str | None:
    return cast("str | None", parse_json(text)["planner"].get("link"))


def _names(path: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in path.iterdir())
    except OSError as error:
        raise unreadable_error(path, error) from error


def _bytes(path: Path) -> bytes:
    try:
        return read_regular(path)
    except OSError as error:
        raise unreadable_error(path, error) from error


def _text(path: Path) -> str:
    try:
        return _bytes(path).decode()
    except UnicodeDecodeError as error:
        raise unreadable_error(path, error) from error


def _parsed(path: Path, parse: Any, content: Any) -> Any:
    """Parse a file's content; the error names the file."""
    try:
        return parse(content)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        message = (
            f"file '{path}' is damaged, or from another version: {_reason(error)}; restore it from a copy of "
            "the run's folder, or name another run"
        )
        raise InvalidInputError(message, code="run_unreadable") from error


def _reason(error: BaseException) -> str:
    """Return why a file cannot be read: the parser's reason, or what the content lacks."""
    if isinstance(error, KeyError):
        return f"{error} is missing"
    if isinstance(error, (LookupError, TypeError, AttributeError)):
        return "its values are of other types than a run writes"
    return str(error)
