"""The batches of a loader, step by step, from the place where the loader's iteration begins."""

import math
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Never, TypeVar

from hydraulis.batching.epoch.state import Iteration, Position, have_other_plans
from hydraulis.batching.step_planner import BalancedStep
from hydraulis.errors import InvalidInputError

Loaded = TypeVar("Loaded")

_END = object()


def group_epochs(
    sampler: Any, loader: Iterable[Loaded], epochs: int
) -> Iterator[tuple[BalancedStep, Iterator[Loaded]]]:
    """Yield each step of the epochs that remain, with its batches.

    Args:
        sampler: `BalancedBatchSampler` that drives the loader.
        loader: Loader at the start of an iteration.
        epochs: Number of the epoch before which the run ends.

    Raises:
        InvalidInputError: As `group_batches`, or the loader does not iterate over the sampler (code
            `argument_invalid`).
    """
    while (epoch := sampler.epoch) < epochs:
        number = sampler.begun.number
        yield from group_batches(sampler, loader, epochs)
        if (sampler.epoch, sampler.begun.number) == (epoch, number):
            _refuse("the loader does not iterate over this sampler")


def group_batches(
    sampler: Any, loader: Iterable[Loaded], epochs: float = math.inf
) -> Iterator[tuple[BalancedStep, Iterator[Loaded]]]:
    """Yield each step of one epoch with its batches.

    Args:
        sampler: `BalancedBatchSampler` that drives the loader.
        loader: Loader at the start of an iteration.
        epochs: Number of the epoch before which the run ends. A loader can load a state at this end.

    Raises:
        InvalidInputError: The loader has more or fewer batches than the steps, loads a state of another
            epoch than `set_epoch` chose, began before the sampler's state was loaded, or is distributed by
            accelerate (code `argument_invalid`); or the state is inside a step, or counts batches of other
            plans (`checkpoint_mismatch`).
    """
    _refuse_shards(loader)
    chosen, before = sampler.chosen_epoch, sampler.begun.number
    batches, epoch, position = _begin(sampler, loader)
    number = max(before + 1, sampler.begun.number)
    if chosen not in (None, epoch):
        message = (
            f"set_epoch chose epoch {chosen}, and the loader's state continues epoch {epoch}: it would be "
            "trained twice; leave set_epoch out, and give group the number of epochs"
        )
        raise InvalidInputError(message, code="argument_invalid")
    if epoch >= epochs:
        return
    if position.batch:
        message = (
            f"the state is inside step {position.step} of epoch {epoch}, after {position.batch} of its "
            "batches: their gradients are lost, and other ranks may be in another step; save states at the "
            "end of a step. To begin this one again, load "
            f"sampler.state_at({position.step}, epoch={epoch}) into the sampler of a new loader"
        )
        raise InvalidInputError(message, code="checkpoint_mismatch")
    sampler.current_group = own = object()
    for index in range(position.step, sampler.count_steps(epoch)):
        step = sampler.step(index, epoch)
        size = len(step.own)
        read = _Counted(islice(batches, size))
        try:
            yield step, read
            # The loop may leave batches unread.
            for _ in read:
                pass
        except BaseException:
            if sampler.current_group is own and sampler.begun.number <= number:
                done = Position(index, read.count) if read.count < size else Position(index + 1, 0)
                _leave(sampler, epoch, done, has_read=done != position)
            raise
        if read.count != size:
            _refuse(f"step {index} of epoch {epoch} has {size} batches, and the loader gave {read.count}")
    # Lets the loader and this sampler end their epoch.
    if next(batches, _END) is not _END:
        _refuse(f"the steps of epoch {epoch} have fewer batches than the loader")


def _begin(sampler: Any, loader: Iterable[Loaded]) -> tuple[Iterator[Loaded], int, Position]:
    """Begin an iteration over a loader, and return it with the epoch and the position of its first batch."""
    # torchdata makes the iterator of a loader with workers when it is asked for a state.
    has_begun = getattr(loader, "num_workers", 0) and getattr(loader, "_initial_iter_for_state_dict", False)
    if has_begun and sampler.is_loaded:
        message = (
            "the sampler's state was loaded after the loader began to read: torchdata's loader begins when "
            "it is asked for its state, and accelerate asks in `prepare`; load the state before"
        )
        raise InvalidInputError(message, code="argument_invalid")
    count = sampler.begun.number
    # A loader loads its state here, and worker processes read the first batches.
    try:
        batches = iter(loader)
    except StopIteration:
        # torchdata skips more batches than the iteration has.
        raise _uncounted(sampler.begun.epoch) from None
    if has_begun or sampler.begun.number != count:
        begun = sampler.begun
        first, skipped = _first_position(batches, begun)
        if _counts_other_batches(loader, batches, sampler, count) or (
            begun.has_other_plans and (first, skipped) != (begun.position, 0)
        ):
            raise _uncounted(begun.epoch)
        return batches, begun.epoch, _advanced(sampler, begun.epoch, first, skipped)
    return batches, sampler.epoch, sampler.next_position


def _counts_other_batches(loader: object, batches: object, sampler: Any, count: int) -> bool:
    """Return whether torchdata counts batches of this sampler from a snapshot of other plans.

    Args:
        loader: Loader of the batches.
        batches: Iterator of the loader.
        sampler: Sampler that drives the loader.
        count: Number of iterations that had begun before that of the loader.
    """
    if not getattr(loader, "num_workers", 0) or getattr(loader, "snapshot_every_n_steps", 1) == 1:
        return False
    begun = sampler.begun
    # After the last batches of an epoch torchdata begins the next iteration at once.
    if begun.last_other > count and begun.number > begun.last_other:
        return True
    saved, _ = _snapshot(batches)
    return begun.has_other_plans and saved is not None and have_other_plans(saved, sampler.state_dict())


def _uncounted(epoch: int) -> InvalidInputError:
    message = (
        "the loader's state counts batches since a snapshot, and its steps had other micro-batches than the "
        "sampler's: which steps are done is lost; load sampler.state_at(STEP, "
        f"epoch={epoch}) into the sampler of a new loader, where STEP is the next step, or continue with the "
        "ranks and options of the state. With snapshot_every_n_steps=1 states have the step"
    )
    return InvalidInputError(message, code="checkpoint_mismatch")


def _leave(sampler: Any, epoch: int, done: Position, *, has_read: bool) -> None:
    """Let the next iteration begin the epoch again, however far the loader has read.

    Nothing changes if the loop has chosen an epoch or loaded a state. A loaded state is loaded again if
    nothing after it was read.
    """
    if sampler.chosen_epoch is None and not sampler.is_loaded:
        sampler.leave(epoch, done, is_loaded=not has_read and done != Position(0, 0))


def _refuse_shards(loader: object) -> None:
    """Refuse a loader that accelerate distributes: its batches are those of one process."""
    one = getattr(loader, "batch_sampler", None)
    while one is not None:
        count = getattr(one, "num_processes", 1)
        if count > 1:
            message = (
                f"the loader gives each of {count} processes its part of the batches, as accelerate prepares "
                "it, so that they are not those of the steps: give group the loader before `prepare` and the "
                "sampler a rank, or read `len(step.micro_batches[0])` batches for each step"
            )
            raise InvalidInputError(message, code="argument_invalid")
        one = getattr(one, "batch_sampler", None)


class _Counted(Iterator[Loaded]):
    """An iterator that counts the batches that it gave."""

    def __init__(self, batches: Iterator[Loaded]) -> None:
        self.count = 0
        self._batches = batches

    def __next__(self) -> Loaded:
        batch = next(self._batches)
        self.count += 1
        return batch


def _first_position(batches: Any, begun: Iteration) -> tuple[Position, int]:
    """Return a position at or before the first batch of an iterator, and the batches between them.

    torchdata's workers load the sampler at a snapshot, and skip the batches that are done since then. While
    they skip, they may take a snapshot, which then has the position of the sampler.
    """
    saved, skipped = _snapshot(batches)
    return (begun.position, 0) if saved is None else (Position(saved["step"], saved["batch"]), skipped)


def _snapshot(batches: Any) -> tuple[dict[str, Any] | None, int]:
    """Return the sampler's state in the snapshot of torchdata's iterator, and the batches since then.

    The state is None if the iterator has no snapshot, or has given no batch.
    """
    state = batches.state_dict() if hasattr(batches, "state_dict") else {}
    snapshot, skipped = state.get("_snapshot", {}), int(state.get("_steps_since_snapshot", 0))
    saved = snapshot.get("_main_snapshot", {}).get("_index_sampler_state")
    return (saved if saved is not None and snapshot["_snapshot_step"] + skipped else None), skipped


def _advanced(sampler: Any, epoch: int, position: Position, batches: int) -> Position:
    step, batch = position.step, position.batch + batches
    while step < sampler.count_steps(epoch) and batch >= (size := len(sampler.step(step, epoch).own)):
        step, batch = step + 1, batch - size
    return Position(step, batch)


def _refuse(reason: str) -> Never:
    message = f"{reason}; give the loader that this sampler drives, and iterate over it here alone"
    raise InvalidInputError(message, code="argument_invalid")
