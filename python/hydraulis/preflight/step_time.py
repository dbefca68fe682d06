"""The check of a run's predicted time: its first steps, as planned and under each kind of sharding."""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from hydraulis._core import Cluster, CostProfile, Link
from hydraulis.config.run import RunConfig
from hydraulis.data.dataset import Dataset
from hydraulis.data.sampling.run_sampler import make_sampler
from hydraulis.errors import HydraulisError
from hydraulis.planner.profile_document import with_schemes
from hydraulis.preflight.finding import Status, with_warnings
from hydraulis.runtime.planning.run_planner import RunPlanner, run_link
from hydraulis.runtime.planning.run_schemes import run_schemes, with_derived_schemes
from hydraulis.runtime.ranks.device import shared_cores
from hydraulis.runtime.state.parameters import ModelParameters
from hydraulis.text.values import format_count, format_percent

_SHARDED: tuple[Literal["gradients", "parameters"], ...] = ("gradients", "parameters")
# The most batches that are planned, the least, and the time in seconds after which no more are.
_MOST_STEPS, _LEAST_STEPS, _PLANNING_S = 50, 3, 2.0
# A smaller gain is within the errors of predicted times.
_LEAST_GAIN = 0.05
# Units of time in ms, the longest first.
_UNITS = {"days": 86_400_000, "h": 3_600_000, "min": 60_000, "s": 1_000}


class _Lengths(NamedTuple):
    """A batch: tokens and targets of each sequence, int64 [sequences]."""

    tokens: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]


def check_step_time(
    config: RunConfig,
    cluster: Cluster,
    profile: CostProfile | None,
    data: Dataset | None,
    steps: int | None,
    completed: int = 0,
) -> tuple[Status, str]:
    """Plan the first steps of a run, and warn if a kind of sharding makes them shorter.

    Each batch is planned alone, also with `planner.lookahead`.

    Args:
        config: Configuration of the run.
        cluster: Cluster of the run.
        profile: Cost profile that the run reads; None if it measures one.
        data: Training sequences; None if they are not indexed yet.
        steps: Number of steps of the run; None if it follows from data without an index.
        completed: Number of steps that a resumed run has completed.

    Raises:
        HydraulisError: The run has no scheme, or a batch has no plan (see `run_schemes` and `Planner.plan`).
    """
    if profile is None or data is None or steps is None:
        return "later", "follows from profile, data and length"
    left = max(0, steps - completed)
    batches = _first_batches(config, data, max(1, min(_MOST_STEPS, steps)))
    step_ms = list(_step_times(config, cluster, profile, batches))
    batches, mean_ms = batches[: len(step_ms)], float(np.mean(step_ms))
    has_transfers = _link(config, cluster, profile) is not None
    text = (
        f"{mean_ms:,.0f} ms a step, the mean of the first {format_count(len(batches), 'batch', 'batches')}, "
        f"predicted {'with' if has_transfers else 'without'} transfers: {_duration(left * mean_ms)} for "
        f"{format_count(left, 'step')}{_shared_cores(config, cluster)}"
    )
    is_compared = has_transfers and config.train.sharding == "none" and config.planner.is_search
    return with_warnings(
        text, _shorter_by_sharding(config, cluster, profile, batches, mean_ms) if is_compared else ""
    )


def _first_batches(config: RunConfig, data: Dataset, number: int) -> list[_Lengths]:
    """Sample the first batches, as the run does."""
    sampler = make_sampler(config.data, data, config.train.seed, config.train.epochs)
    sequences = [sampler.batch(step).sequences for step in range(number)]
    return [_Lengths(data.lengths[of_batch], data.target_counts[of_batch]) for of_batch in sequences]


def _shared_cores(config: RunConfig, cluster: Cluster) -> str:
    """Say that the CPU ranks of one machine share cores; empty otherwise."""
    is_on_cpu = config.train.device == "cpu" or (
        config.train.device == "auto" and not torch.cuda.is_available()
    )
    shared = shared_cores(cluster.gpus) if is_on_cpu and cluster.gpus <= cluster.gpus_per_node else ""
    return f"; {shared} if they run on this machine, and steps then take longer" if shared else ""


def _step_times(
    config: RunConfig, cluster: Cluster, profile: CostProfile, batches: Sequence[_Lengths]
) -> Iterator[float]:
    """Yield the predicted time of each batch's step in ms, of fewer batches if planning takes long."""
    planner = _planner(config, cluster, profile)
    end = time.monotonic() + _PLANNING_S
    for number, batch in enumerate(batches):
        if number >= _LEAST_STEPS and time.monotonic() > end:
            return
        yield planner.plan(*batch).step_ms


def _mean_step_ms(
    config: RunConfig, cluster: Cluster, profile: CostProfile, batches: Sequence[_Lengths]
) -> float:
    """Return the mean predicted time of the batches' steps in ms."""
    planner = _planner(config, cluster, profile)
    return float(np.mean([planner.plan(*batch).step_ms for batch in batches]))


def _planner(config: RunConfig, cluster: Cluster, profile: CostProfile) -> RunPlanner:
    whole = with_derived_schemes(profile, config.planner)
    used = with_derived_schemes(with_schemes(whole, run_schemes(config, cluster, profile)), config.planner)
    return RunPlanner(config.planner, used, cluster, _link(config, cluster, used))


def _link(config: RunConfig, cluster: Cluster, profile: CostProfile) -> Link | None:
    model = ModelParameters.from_config(config.model, config.train.frozen, config.train.stage_layers)
    return run_link(config.planner, profile, cluster, model, getattr(torch, config.train.dtype))


def _duration(ms: float) -> str:
    """Format a duration in the longest unit of which it has two, or in seconds."""
    unit = next((name for name, size in _UNITS.items() if ms >= 2 * size), "s")
    return f"{ms / _UNITS[unit]:,.1f} {unit}"


def _shorter_by_sharding(
    config: RunConfig, cluster: Cluster, profile: CostProfile, batches: Sequence[_Lengths], mean_ms: float
) -> str:
    """Name the kind of sharding with the shortest steps if these are clearly shorter; otherwise empty."""
    best, best_ms = "", (1 - _LEAST_GAIN) * mean_ms
    for kind in _SHARDED:
        sharded = dataclasses.replace(config, train=dataclasses.replace(config.train, sharding=kind))
        try:
            sharded_ms = _mean_step_ms(sharded, cluster, profile.with_sharding(kind), batches)
        except HydraulisError:
            # The profile does not name its model, has only schemes with stages, or admits shorter sequences.
            continue
        if sharded_ms < best_ms:
            best, best_ms = kind, sharded_ms
    if not best:
        return ""
    return (
        f"with train.sharding = '{best}' they take {best_ms:,.0f} ms, "
        f"{format_percent(1 - best_ms / mean_ms, 0)} less: set it, and name a profile of that sharding"
    )
