"""Notes of a run to its observer: the model, its kernels, and ranks that are slow or recovered."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from hydraulis.config.run import RunConfig
from hydraulis.errors import HydraulisError
from hydraulis.preflight.notes import no_decay_note, positions_note
from hydraulis.runtime.checkpoint.folder import CheckpointFolder
from hydraulis.runtime.checkpoint.resume import ResumedRun
from hydraulis.runtime.hugging_face.files import tokenizer_note
from hydraulis.runtime.planning.rank_rates import RateChange
from hydraulis.runtime.ranks.device import shared_cores
from hydraulis.runtime.ranks.rank_zero import from_rank_zero
from hydraulis.runtime.worker import Worker
from hydraulis.text.values import name_ranks
from hydraulis.train.observer import TrainingObserver

# Most ranks of a host that a message names.
_MAX_NAMED = 8
_NOT_FINITE = ("gradient_not_finite", "loss_not_finite")


def naming_resumed(error: Exception, resumed: ResumedRun | None) -> HydraulisError | None:
    """Return the error of a run's first step with the name of the resumed state; None for other causes.

    The same parameters and batch give the same number again, whatever the learning rate.

    Args:
        error: Error of the step; one of a number that is not finite may come from the resumed state.
        resumed: Run that was resumed; None for a new run.
    """
    if resumed is None or not isinstance(error, HydraulisError) or error.code not in _NOT_FINITE:
        return None
    checkpoints = CheckpointFolder.of_run(resumed.run).complete()
    earlier = [path for path in checkpoints if path != resumed.checkpoint]
    then = f"to continue from {earlier[-1]}, remove the later one" if earlier else "no earlier one is left"
    message = (
        f"{error}; it is the first step after {resumed.checkpoint}, whose parameters may be the cause: {then}"
    )
    named = HydraulisError(message, code=error.code)
    named.is_everywhere = error.is_everywhere
    return named


def rate_messages(step: int, changes: Sequence[RateChange], hosts: Sequence[str]) -> Iterator[str]:
    """Describe changed rates, in a message for each host and kind of change.

    Args:
        step: Number of the step whose times decided.
        changes: Ranks that became slow or recovered.
        hosts: Name of each rank's host.
    """
    by_host: dict[tuple[str, bool], list[RateChange]] = defaultdict(list)
    for change in changes:
        by_host[hosts[change.rank], change.slowdown > 1].append(change)
    for (host, is_slow), same in by_host.items():
        ranks, plural = _named([change.rank for change in same]), len(same) > 1
        if is_slow:
            slowest = max(change.slowdown for change in same)
            computes = f"compute up to {slowest:g}" if plural else f"computes {slowest:g}"
            yield (
                f"step {step}: {ranks} on {host} {computes} times as long as the other ranks for the same "
                "work; plans give such ranks less work from now on"
            )
        else:
            yield f"step {step}: {ranks} on {host} {'compute' if plural else 'computes'} at full rate again"


def _named(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - _MAX_NAMED} more" if len(ranks) > _MAX_NAMED else ""
    return f"{name_ranks(ranks[:_MAX_NAMED])}{more}"


def report_model(config: RunConfig, observer: TrainingObserver) -> None:
    """Report data and settings that do not fit the model. Collective."""
    notes = (
        lambda: positions_note(config),
        lambda: tokenizer_note(config.checkpoint.weights, config.data),
        lambda: no_decay_note(config),
    )
    for note in map(from_rank_zero, notes):
        if note:
            observer.message(note)


def cpu_times_note(ranks: int) -> str:
    """Explain the times of CPU ranks that share cores; empty if each has a core of its own.

    Args:
        ranks: Ranks of this machine.
    """
    shared = shared_cores(ranks)
    if not shared:
        return ""
    return (
        f"times are planned and measured as CPU time of the slowest replica; {shared}, so a step's "
        "wall-clock time is longer"
    )


def describe_kernels(worker: Worker) -> str:
    """Name the kernels of a worker that its settings choose."""
    compiled = ["compiled elementwise operations"] if worker.train.compile else []
    float8 = ["linear maps in float8"] if worker.train.float8 else []
    messages = ["messages between stages in float8"] if worker.train.float8_messages else []
    copies = ["tensor ranks exchange through symmetric memory"] if worker.train.symmetric_memory else []
    return ", ".join([f"attention kernel {worker.kernel.name}", *compiled, *float8, *messages, *copies])
