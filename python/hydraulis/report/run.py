"""The records of a run directory, read for its report."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from hydraulis._core import CostProfile, Plan, Span
from hydraulis.data.analysis import Analysis
from hydraulis.errors import HydraulisError
from hydraulis.files import unreadable_error
from hydraulis.progress import ignore_progress
from hydraulis.runtime.records.evaluation import Evaluation
from hydraulis.runtime.records.metrics import StepMetrics
from hydraulis.runtime.records.run_directory import (
    ANALYSIS,
    EVALUATIONS,
    METRICS,
    PLANS,
    PROFILE,
    RUN_CONFIG,
    TRACE,
    not_a_run,
    require_run,
)
from hydraulis.runtime.records.trace import MEASURED, PLANNED, durations, traced_step

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hydraulis.progress import ProgressCallback

_T = TypeVar("_T")


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
        metrics: Metrics of each step.
        plans: Plans of the same steps.
        profile: Cost profile of the plans.
        strategies: Strategies that the planner chose from.
        num_steps: Number of steps of the whole run.
        traced: Step with a recorded timeline; None if there is none.
        evaluations: Evaluations on held-out data, in order.
        analysis: Analysis of the data; None if it was not recorded.
    """

    path: Path
    metrics: list[StepMetrics]
    plans: list[Plan]
    profile: CostProfile
    strategies: list[str]
    num_steps: int
    traced: TracedStep | None
    evaluations: list[Evaluation]
    analysis: Analysis | None

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of every sequence that was trained, int64 of shape (sequences,)."""
        return np.concatenate([plan.lengths for plan in self.plans])


def read_run(path: Path, progress: ProgressCallback = ignore_progress) -> Run:
    """Read a run directory.

    Args:
        path: Run directory.
        progress: Callback during reading, with the activity and its progress.

    Raises:
        InvalidInputError: A file cannot be read (code `file_unreadable`), or the folder or a file was not
            written by a run (`run_unreadable`).
    """
    require_run(path)
    if not any((path / name).exists() for name in (METRICS, PLANS)):
        raise _without_steps(path)
    metrics = _steps(path / METRICS, StepMetrics.from_json, progress)
    plans = _steps(path / PLANS, Plan.from_json, progress)
    # A running training may have written a step's metrics and not yet its plan.
    steps = min(len(metrics), len(plans))
    if steps == 0:
        raise _without_steps(path)
    profile = _parsed(path / PROFILE, CostProfile.from_json, _text(path / PROFILE))
    config = _parsed(path / RUN_CONFIG, json.loads, _text(path / RUN_CONFIG))
    by_step = {one.step: plan for one, plan in zip(metrics, plans, strict=False)}
    trace = path / TRACE
    return Run(
        path=path,
        metrics=metrics[:steps],
        plans=plans[:steps],
        profile=profile,
        strategies=_parsed(path / RUN_CONFIG, _strategies, config),
        num_steps=_parsed(path / RUN_CONFIG, _num_steps, config),
        traced=_traced(trace, by_step) if trace.exists() else None,
        evaluations=_evaluations(path, metrics[steps - 1].step),
        analysis=_analysis(path),
    )


def _without_steps(path: Path) -> HydraulisError:
    return not_a_run(path, f"no step is recorded in {METRICS} and {PLANS}; train at least one")


def _traced(path: Path, plans: dict[int, Plan]) -> TracedStep:
    document = _parsed(path, json.loads, _text(path))
    step = _parsed(path, traced_step, document)
    if step not in plans:
        raise not_a_run(path, f"its step {step} is not in {METRICS}")
    plan = plans[step]
    # From the trace, not the profile, whose times may have been corrected when the step was planned.
    timelines = {
        name: _parsed(path, partial(_timeline, plan, name), document) for name in (PLANNED, MEASURED)
    }
    return TracedStep(step=step, plan=plan, timelines=timelines)


def _timeline(plan: Plan, name: str, document: dict[str, Any]) -> list[list[Span]]:
    return plan.measured_timeline(durations(plan, document, name))


def _steps(path: Path, parse: Callable[[str], _T], progress: ProgressCallback) -> list[_T]:
    """Read a file with a line for each step."""
    lines, found = _lines(path.parent, path.name), []
    for done, line in enumerate(lines):
        progress(f"reading {path.name}", done, len(lines))
        found.append(_parsed(path, parse, line))
    return found


def _evaluations(path: Path, last: int) -> list[Evaluation]:
    """Read the evaluations up to a step; a running training may have added later ones meanwhile."""
    if not (path / EVALUATIONS).exists():
        return []
    found = [_parsed(path / EVALUATIONS, Evaluation.from_json, line) for line in _lines(path, EVALUATIONS)]
    return [one for one in found if one.step <= last]


def _analysis(path: Path) -> Analysis | None:
    file = path / ANALYSIS
    return _parsed(file, Analysis.from_json, _text(file)) if file.exists() else None


def _strategies(config: Any) -> list[str]:
    return [str(strategy) for strategy in config["planner"]["strategies"]]


def _num_steps(config: Any) -> int:
    return int(config["train"]["steps"])


def _lines(path: Path, name: str) -> list[str]:
    return [line for line in _text(path / name).splitlines() if line.strip()]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable_error(path, error) from error


def _parsed(path: Path, parse: Any, content: Any) -> Any:
    """Parse a file's content; the error names the file."""
    try:
        return parse(content)
    except (HydraulisError, ValueError, KeyError, TypeError, IndexError) as error:
        raise not_a_run(path, f"{type(error).__name__}: {error}") from error
