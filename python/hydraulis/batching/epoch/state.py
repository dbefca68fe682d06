"""The state of a sampler: a position, and the facts without which the position has another meaning."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from hydraulis.batching.cost import SequenceCost
from hydraulis.batching.epoch.division import needs_plans
from hydraulis.batching.items.pool import SequencePool
from hydraulis.batching.options import to_whole
from hydraulis.errors import InvalidInputError

# Facts that decide the sequences of a step, and those that decide its micro-batches too.
_CONTENT = (
    "sequences",
    "checksum",
    "seed",
    "shuffle",
    "sequences_per_step",
    "tokens_per_step",
    "drop_last",
    "dropped_above",
    "truncated_to",
    "pad_sequence_to",
    "filled",
    "filled_by_plans",
    "steps_per_epoch",
)
_OPTIONS = (
    "ranks",
    "cap_tokens",
    "barrier",
    "micro_batches",
    "least_micro_batches",
    "multiple_of",
    "equal_sequences",
    "cap_extra_tokens",
    "pad_to",
    "allow_empty",
)
PLACE = ("epoch", "step", "batch")
# Facts that decide whether a step has a plan.
_FIT = (*_OPTIONS, "cost", "speeds", "values")
_PLAN = (*_FIT, "is_global")


class Position(NamedTuple):
    """A place in an epoch: a step, and the batches of it that are done."""

    step: int
    batch: int


class Iteration(NamedTuple):
    """An iteration over a sampler.

    Attributes:
        number: Number of iterations that have begun.
        epoch: Epoch of the last one.
        position: First position of the last one.
        last_other: Number of the last one that continued a state whose steps had other micro-batches; 0 for
            none.
    """

    number: int
    epoch: int
    position: Position
    last_other: int = 0

    @property
    def has_other_plans(self) -> bool:
        """Whether the last iteration continued a state whose steps had other micro-batches."""
        return 0 < self.last_other == self.number


def identify(sampler: Any, cost: SequenceCost, pool: SequencePool) -> dict[str, Any]:
    """Collect the facts that a state states besides its position, as plain values.

    Args:
        sampler: Sampler with its options.
        cost: Time of a sequence.
        pool: Items of the data set.
    """
    summary = pool.summary
    limit = sampler.cap_tokens // sampler.pad_to * sampler.pad_to
    by_tokens = sampler.sequences_per_step is None
    is_filled = by_tokens and sampler.tokens_per_step is None
    return {
        "sequences": summary.sequences,
        "checksum": pool.checksum,
        "seed": sampler.seed,
        "shuffle": sampler.shuffle,
        "sequences_per_step": sampler.sequences_per_step,
        "tokens_per_step": sampler.tokens_per_step,
        "drop_last": sampler.drop_last,
        "dropped_above": pool.limit if sampler.num_dropped else None,
        "truncated_to": limit if by_tokens and summary.longest_tokens > limit else None,
        "pad_sequence_to": sampler.pad_sequence_to if by_tokens else None,
        "filled": _capacity(sampler, limit) if is_filled else None,
        "filled_by_plans": is_filled and needs_plans(sampler),
        "steps_per_epoch": sampler.steps_per_epoch,
        **{name: getattr(sampler, name) for name in _OPTIONS},
        "is_global": sampler.rank is None,
        "cost": [cost.linear, cost.quadratic, cost.fixed],
        "speeds": None if sampler.speeds is None else list(sampler.speeds),
        "values": pool.values.checksum,
    }


def _capacity(sampler: Any, limit: int) -> list[int]:
    return [sampler.ranks * sampler.micro_batches, limit, int(sampler.allow_empty)]


def restore(state: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[int, Position]:
    """Read a state's epoch and position.

    Args:
        state: Saved state.
        own: Facts of the sampler that continues, from `identify`.

    Raises:
        InvalidInputError: A fact differs that the position depends on, or the position does not exist (code
            `checkpoint_mismatch`).
    """
    known = state if isinstance(state, Mapping) else {}
    missing = [name for name in (*PLACE, *own) if name not in known]
    if missing:
        message = (
            f"the state has no '{missing[0]}', so it is no state of this sampler; give one of state_dict()"
        )
        raise InvalidInputError(message, code="checkpoint_mismatch")
    try:
        epoch, *place = (to_whole(name, state[name], 0) for name in PLACE)
    except InvalidInputError as error:
        message = f"the state's {error}"
        raise InvalidInputError(message, code="checkpoint_mismatch") from None
    position = Position(*place)
    inside = position.batch > 0
    planned = _FIT if state["filled_by_plans"] or own["filled_by_plans"] else ()
    for name in (*planned, *_CONTENT, *(_PLAN if inside else ())):
        if state[name] != own[name]:
            needs_step = name in _PLAN and name not in planned
            remedy = "or continue from the start of a step" if needs_step else "or start a new epoch"
            given, expected = (_with_names(name, one[name]) for one in (state, own))
            message = f"the state has {given}, and the sampler {expected}; give it the state's, {remedy}"
            raise InvalidInputError(message, code="checkpoint_mismatch")
    return epoch, position


def have_other_plans(state: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Return whether steps of a state had other micro-batches than those of the sampler that continues.

    Args:
        state: Saved state.
        own: Facts of the sampler that continues, from `identify`.
    """
    return any(state[name] != own[name] for name in _PLAN)


def _with_names(name: str, value: Any) -> str:
    """Return a fact with its name, and the numbers of a step's capacity with the options that set them."""
    if name != "filled" or not isinstance(value, list | tuple) or len(value) != 3:
        return f"{name} = {value}"
    slots, cap, allow_empty = value
    return f"ranks x micro_batches = {slots}, cap_tokens = {cap}, allow_empty = {bool(allow_empty)}"


def check_exists(position: Position, epoch: int, num_steps: int, num_batches: int) -> None:
    """Check that an epoch has a position.

    Args:
        position: Position of a saved state.
        epoch: Number of the epoch.
        num_steps: Number of steps of the epoch.
        num_batches: Number of batches of the position's step; 1 at the start of a step.

    Raises:
        InvalidInputError: The step or the batch is past the last (code `checkpoint_mismatch`).
    """
    is_inside = position.batch > 0
    if position.step + is_inside > num_steps or position.batch >= num_batches:
        message = (
            f"the state is at step {position.step}, batch {position.batch}; epoch {epoch} has {num_steps} "
            f"steps, this one of {num_batches} batches; give another state"
        )
        raise InvalidInputError(message, code="checkpoint_mismatch")
