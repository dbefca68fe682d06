"""A batch sampler with a token cap, balanced in time over the ranks, that resumes exactly.

Each epoch is a permutation of the sequences, divided into steps of nearly equal size. The sequences of a step
depend on the lengths, the seed, the epoch and the number of the step alone. Its micro-batches depend on these
sequences and the options. So every rank computes the same plan without a message, and training continues at
any step on any number of ranks.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np

from hydraulis.batching.cost import SequenceCost
from hydraulis.batching.epoch.division import EpochDivision
from hydraulis.batching.epoch.grouping import Loaded, group_batches, group_epochs
from hydraulis.batching.epoch.order import EpochOrder, Indices
from hydraulis.batching.epoch.state import (
    Iteration,
    Position,
    check_exists,
    have_other_plans,
    identify,
    restore,
)
from hydraulis.batching.epoch.steps import Steps
from hydraulis.batching.items.groups import open_groups
from hydraulis.batching.items.lengths import open_lengths
from hydraulis.batching.items.pool import TooLong, make_pool
from hydraulis.batching.items.values import make_values
from hydraulis.batching.options import check_data, check_options, check_targets, to_whole
from hydraulis.batching.report import BalanceReport, report_steps
from hydraulis.batching.step_planner import BalancedStep, Barrier, StepPlan, StepPlanner
from hydraulis.errors import InfeasibleError, InvalidInputError

# Plans of recent steps: a training loop asks for the plan of the step whose batches it loads.
_CACHED_STEPS = 8
_CACHES = ("_steps", "_plan", "_length")


@dataclass(eq=False, kw_only=True)
class BalancedBatchSampler:
    """A `batch_sampler` for `torch.utils.data.DataLoader` whose batches are micro-batches of one rank.

    The classes that wrap a loader read `batch_size` (None, because sizes vary), `drop_last`, `sampler`,
    `set_epoch`, `state_dict` and `load_state_dict`.

    Attributes:
        lengths: Tokens of each sequence: an array, a memory map, a data set with its `column`, or the path of
            a file with lengths (`hydraulis.batching.open_lengths`).
        column: Column of the data set, with lengths or with lists of tokens.
        cap_tokens: Most tokens of a micro-batch, with padding.
        cost: Time of a sequence: a `SequenceCost`, a cost profile, the configuration of a model, or
            `(linear, quadratic)`.
        ranks: Number of data-parallel ranks.
        rank: This rank; None for the batches of all ranks in turn, which accelerate distributes.
        sequences_per_step: Most sequences of a step.
        tokens_per_step: Approximate tokens of a step, at least those of the longest sequence.
        micro_batches: Number of micro-batches of every rank in every step, for a loop with a fixed number of
            accumulated micro-batches; None for as few as possible. Without `sequences_per_step` and
            `tokens_per_step` a step has as many sequences as fit, and epochs may differ by a few steps.
        steps_per_epoch: Number of steps of every epoch with `micro_batches` alone; large steps are divided to
            reach it, and `drop_last` keeps a last step that an epoch lacks. None for as few steps as each
            epoch needs.
        barrier: "micro_batch" if the ranks wait for each other in every micro-batch (FSDP, ZeRO-3), "step"
            if once a step (DDP, ZeRO-1).
        least_micro_batches: Least number of micro-batches of a rank in a step.
        multiple_of: Divisor of every rank's number of micro-batches in a step.
        equal_sequences: Whether the ranks' numbers of sequences (of groups with `groups`) in a step differ by
            at most one.
        speeds: Speed of each rank in proportion to the others; None for equal speeds. A rank of speed 0.5
            takes twice as long.
        work: Time of each sequence in addition to that of its tokens, in the unit of the cost, such as that
            of its images: an array or a memory map. None for none.
        extra_tokens: Tokens of each sequence of a second kind, such as those of a vision encoder, as an array
            or a memory map; `cap_extra_tokens` limits them. They take no time: `work` has theirs.
        cap_extra_tokens: Most extra tokens of a micro-batch.
        targets: Target tokens of each sequence, in a form of `lengths`, of the tokens that are left after
            truncation; None for all of these but the first, which is wrong where labels are masked.
        groups: Number of the group of each sequence, in a form of `lengths`. A group stays in one
            micro-batch, and the sizes of a step count groups. None for no groups.
        prefix_tokens: Tokens of the prefix that each sequence shares with the rest of its group. They occupy
            the micro-batch once, as `hydraulis.batching.collators.PrefixTreeCollator` computes them.
        too_long: Treatment of a sequence longer than the cap: "refuse" it, "drop" it, or "truncate", which
            counts it as long as the cap and leaves the truncation to the data set or the collator.
        pad_sequence_to: Multiple to which the collator pads each sequence.
        pad_to: Multiple to which the collator pads each micro-batch.
        shuffle: Whether an epoch permutes the sequences.
        seed: Seed of the permutations.
        drop_last: Whether every step is full, and the sequences after the last full one are dropped.
        allow_empty: Whether a batch may have no sequence; the collator then takes an empty list.

    Raises:
        InvalidInputError: An option is outside its range or contradicts another (code `argument_invalid`), or
            a length is (`lengths_invalid`).
        InfeasibleError: A sequence is longer than the cap and refused (code `sequence_too_long`). Iteration
            raises `batch_unplaceable` at a step that has no plan; `report` finds those of the current epoch.

    >>> import numpy as np
    >>> lengths = np.random.default_rng(0).integers(1, 1000, 200)
    >>> options = dict(cap_tokens=4096, cost=(24_576, 1), ranks=2, sequences_per_step=50)
    >>> samplers = [BalancedBatchSampler(lengths, rank=rank, **options) for rank in range(2)]
    >>> seen = [sequence for sampler in samplers for batch in sampler for sequence in batch]
    >>> sorted(seen) == list(range(200))
    True
    """

    lengths: Any = field(repr=False, kw_only=False)
    column: str | None = None
    cap_tokens: int
    cost: Any
    ranks: int
    rank: int | None = None
    sequences_per_step: int | None = None
    tokens_per_step: int | None = None
    micro_batches: int | None = None
    steps_per_epoch: int | None = None
    barrier: Barrier = "micro_batch"
    least_micro_batches: int = 0
    multiple_of: int = 1
    equal_sequences: bool = False
    speeds: Sequence[float] | None = None
    work: Any = field(default=None, repr=False)
    extra_tokens: Any = field(default=None, repr=False)
    cap_extra_tokens: int | None = None
    targets: Any = field(default=None, repr=False)
    groups: Any = field(default=None, repr=False)
    prefix_tokens: Any = field(default=None, repr=False)
    too_long: TooLong = "refuse"
    pad_sequence_to: int = 1
    pad_to: int = 1
    shuffle: bool = True
    seed: int = 0
    drop_last: bool = False
    allow_empty: bool = False

    # Loaders read it; None says that batches have different sizes.
    batch_size: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        check_options(self)
        self._epoch = 0
        self._position = Position(0, 0)
        self._is_loaded = False
        self._has_other_plans = False
        self._chosen_epoch: int | None = None
        self.begun = Iteration(0, 0, self._position)
        # Identifies the call of `group` that reads now.
        self.current_group: object = None
        self._planner = StepPlanner(
            ranks=self.ranks,
            cap_tokens=self.cap_tokens // self.pad_to * self.pad_to,
            cost=SequenceCost.of(self.cost),
            barrier=self.barrier,
            micro_batches=self.micro_batches,
            least_micro_batches=self.least_micro_batches,
            multiple_of=self.multiple_of,
            equal_sequences=self.equal_sequences,
            speeds=None if self.speeds is None else tuple(self.speeds),
            cap_extra_tokens=self.cap_extra_tokens,
            allow_empty=self.allow_empty,
        )
        self._lengths = lengths = open_lengths(self.lengths, self.column)
        groups = open_groups(lengths, self.groups, self.prefix_tokens)
        items = lengths if groups is None else groups.tokens
        values = make_values(len(lengths), self.work, self.extra_tokens, self.cap_extra_tokens, groups)
        cap = self._planner.cap_tokens
        self._pool = make_pool(items, cap, self.too_long, self.pad_sequence_to, groups, values)
        self._targets = None if self.targets is None else open_lengths(self.targets, name="targets")
        check_targets(self._targets, lengths, self._pool.limit if groups is None else None)
        self._division = EpochDivision(self, self._pool, self._planner)
        self._make_caches()
        if not len(self._steps(0)):
            message = "drop_last leaves no full step of these sequences; make the steps smaller"
            raise InvalidInputError(message, code="argument_invalid")
        if self.sequences_per_step is not None:
            self._check_step_size()

    def _check_step_size(self) -> None:
        """Check that the smallest step can fill its micro-batches: sizes are the same in every epoch."""
        count, least = len(self._steps(0)), self._planner.least_items
        smallest = self.sequences_per_step if self.drop_last else len(self._pool) // count
        if smallest is not None and smallest < least:
            message = (
                f"sequences_per_step is {self.sequences_per_step}: {len(self._pool):,} sequences or groups "
                f"make {count:,} steps of as few as {smallest}, and {self.ranks} ranks need {least} to fill "
                "their micro-batches; raise it, "
                f"{'' if self.drop_last else 'pass drop_last=True, '}or set allow_empty=True"
            )
            raise InvalidInputError(message, code="argument_invalid")

    def _make_caches(self) -> None:
        self._steps = lru_cache(maxsize=2)(self._divide)
        self._plan = lru_cache(maxsize=_CACHED_STEPS)(self._make_plan)
        self._length = lru_cache(maxsize=2)(self._count_batches)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the caches out: worker processes of a loader receive a pickled sampler."""
        return {name: value for name, value in vars(self).items() if name not in _CACHES}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._make_caches()

    @property
    def mode(self) -> Literal["rank", "global"]:
        """Whether the batches are those of one rank, or of all ranks in turn."""
        return "global" if self.rank is None else "rank"

    @property
    def sampler(self) -> "BalancedBatchSampler":
        """This object: accelerate's loaders call `batch_sampler.sampler.set_epoch`."""
        return self

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next iteration yields."""
        return self._epoch

    @property
    def chosen_epoch(self) -> int | None:
        """Epoch that `set_epoch` chose for the next iteration; None if it chose none or a state is loaded."""
        return self._chosen_epoch

    @property
    def is_loaded(self) -> bool:
        """Whether a state is loaded that no iteration has continued yet."""
        return self._is_loaded

    @property
    def num_steps(self) -> int:
        """Number of steps of the current epoch."""
        return self.count_steps(self._epoch)

    def count_steps(self, epoch: int) -> int:
        """Count the steps of an epoch."""
        return self.steps_per_epoch or len(self._steps(epoch))

    def check_epoch(self, epoch: int) -> None:
        """Divide an epoch into its steps.

        Raises:
            InfeasibleError: The epoch cannot have `steps_per_epoch` steps, or its last step has too few
                sequences (code `batch_unplaceable`).
        """
        self._steps(epoch)

    @property
    def next_position(self) -> Position:
        """Position at which an iteration begins."""
        return self._position if self._is_loaded else Position(0, 0)

    @property
    def num_sequences(self) -> int:
        """Number of sequences of the data set."""
        return len(self._lengths)

    @property
    def most_tokens(self) -> int:
        """Most tokens of a sequence, to which `too_long="truncate"` counts longer ones."""
        return self._pool.limit

    @property
    def num_dropped(self) -> int:
        """Number of sequences or groups that no epoch has because they are longer than the cap."""
        return self._pool.num_dropped

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration, which starts at its first step if it is another epoch.

        Raises:
            InvalidInputError: The epoch is no whole number of at least 0, or is before that of a loaded state
                which no iteration has continued (code `argument_invalid`).
        """
        epoch = to_whole("epoch", epoch, least=0)
        if self._is_loaded and epoch < self._epoch:
            message = (
                f"set_epoch({epoch}) would discard the loaded state of epoch {self._epoch}: continue with "
                "epochs from sampler.epoch, or load state_at(0, epoch=...) of an earlier one"
            )
            raise InvalidInputError(message, code="argument_invalid")
        self._chosen_epoch = epoch
        if epoch != self._epoch:
            self._epoch, self._position, self._is_loaded = epoch, Position(0, 0), False

    def leave(self, epoch: int, done: Position, *, is_loaded: bool) -> None:
        """End an iteration before its last batch.

        Args:
            epoch: Epoch of the iteration, which the next one yields.
            done: Position after the batches that were used, for `state_dict`.
            is_loaded: Whether the next iteration begins at this position, not at the epoch's start.
        """
        self._epoch, self._position, self._is_loaded = epoch, done, is_loaded

    def __len__(self) -> int:
        """Count the batches of the current epoch.

        Without a fixed number of micro-batches this plans every step of the epoch, some milliseconds each.
        """
        return self._length(self._epoch)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield batches from the loaded position or the epoch's start; then the next epoch is current."""
        # Loaders call `iter` more often than they iterate, so an iteration begins with its first batch.
        epoch, start = self._epoch, self.next_position
        number, last_other = self.begun.number + 1, self.begun.last_other
        if self._is_loaded and self._has_other_plans:
            last_other = number
        self._position, self._is_loaded, self._chosen_epoch = start, False, None
        self.begun = Iteration(number, epoch, start, last_other)
        for index in range(start.step, self.count_steps(epoch)):
            own = self._own(self._plan(epoch, index)[1])
            for place in range(start.batch if index == start.step else 0, len(own)):
                if self._epoch == epoch:
                    is_last = place + 1 == len(own)
                    self._position = Position(index + 1, 0) if is_last else Position(index, place + 1)
                yield own[place].tolist()
        if self._epoch == epoch:
            self._epoch, self._position = epoch + 1, Position(0, 0)

    def step(self, index: int, epoch: int | None = None) -> BalancedStep:
        """Return any step of any epoch.

        Args:
            index: Number of the step in its epoch.
            epoch: Number of the epoch; None for the current one.

        Raises:
            InvalidInputError: There is no such step (code `argument_invalid`).
        """
        number = self._epoch if epoch is None else to_whole("epoch", epoch, least=0)
        count = self.count_steps(number)
        index = to_whole("step", index)
        if not 0 <= index < count:
            message = f"step {index} does not exist: epoch {number} has {count:,} steps, counted from 0"
            raise InvalidInputError(message, code="argument_invalid")
        items, plan = self._plan(number, index)
        own = self._own(plan)
        targets = self._count_targets(self._pool.expand(items))
        share = self.ranks / max(1, targets)
        return BalancedStep(
            epoch=number,
            index=index,
            micro_batches=[[self._pool.expand(part) for part in rank] for rank in plan.micro_batches],
            own=own,
            tokens=int(self._pool.tokens(items).sum()),
            targets=targets,
            loss_weights=[self._count_targets(part) * share for part in own],
            time=plan.time,
            lower_bound=plan.lower_bound,
        )

    def group(
        self, loader: Iterable[Loaded], *, epochs: int | None = None
    ) -> Iterator[tuple[BalancedStep, Iterator[Loaded]]]:
        """Yield each step with its batches from a loader that this sampler drives.

        Args:
            loader: Loader with this sampler as its `batch_sampler`, at the start of an iteration. Batches
                of a step that the loop leaves unread are skipped.
            epochs: Number of epochs of the run, which continues in the epoch of a loaded state; None for the
                rest of one epoch.

        Raises:
            InvalidInputError: The loader's data set has another number of sequences (code `lengths_invalid`),
                or `epochs` is no whole number of at least 0 (`argument_invalid`). Iteration raises
                `argument_invalid` if the loader's batches are not those of the steps, or if it loads a state
                of another epoch than `set_epoch` chose, and `checkpoint_mismatch` if the state is inside a
                step.
        """
        check_data(getattr(loader, "dataset", None), self.num_sequences)
        if epochs is None:
            return group_batches(self, loader)
        return group_epochs(self, loader, to_whole("epochs", epochs, least=0))

    def report(self, steps: int | None = None) -> BalanceReport:
        """Plan the steps of the current epoch, and add up where their time goes.

        Args:
            steps: Number of steps from the first one, at least 1; None for the whole epoch.

        Raises:
            InvalidInputError: `steps` is below 1 (code `argument_invalid`).
            InfeasibleError: A step has no plan (code `batch_unplaceable`).
        """
        count = self.num_steps if steps is None else min(to_whole("steps", steps, least=1), self.num_steps)
        plans = (self._plan(self._epoch, index) for index in range(count))
        return report_steps(plans, self._pool, self._planner, self.pad_to)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch that was yielded, as plain numbers and strings.

        Loaders that read ahead ask for batches before training. torchdata's `StatefulDataLoader` accounts for
        that; with another loader save `state_at(step.index + 1, epoch=step.epoch)` after a step.
        """
        return self._state(self._epoch, *self._position)

    def state_at(self, step: int, *, epoch: int, batch: int = 0) -> dict[str, Any]:
        """Return the state at the start of a step; after the last one it is at the start of the next epoch.

        Args:
            step: Number of the step in its epoch.
            epoch: Number of the epoch. That of a loader that reads ahead can be the next one already.
            batch: Batches of the step that are done.

        Raises:
            InvalidInputError: The epoch has no such position (code `argument_invalid`).
        """
        names = ("epoch", "step", "batch")
        epoch, step, batch = (to_whole(*one, 0) for one in zip(names, (epoch, step, batch), strict=True))
        count = self.count_steps(epoch)
        if step == count and not batch:
            return self._state(epoch + 1, 0, 0)
        size = len(self.step(step, epoch).own) if batch or step > count else 1
        if batch >= size:
            message = f"batch is {batch}: step {step} of epoch {epoch} has {size}, counted from 0; correct it"
            raise InvalidInputError(message, code="argument_invalid")
        return self._state(epoch, step, batch)

    def _state(self, epoch: int, step: int, batch: int) -> dict[str, Any]:
        return {"epoch": epoch, "step": step, "batch": batch, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a saved position in the next iteration.

        At the start of a step the number of ranks, the cap and the cost may be others than those of the
        state. Inside of a step they are the same, and so they are where plans decide how many sequences a
        step has: with `micro_batches` alone and `equal_sequences` or `cap_extra_tokens`.

        Raises:
            InvalidInputError: The state has other sequences, another seed or other steps (code
                `checkpoint_mismatch`).
        """
        own = self._identity()
        epoch, position = restore(state, own)
        count, batches = self.count_steps(epoch), 1
        if position.batch and position.step < count:
            batches = len(self._own(self._plan(epoch, position.step)[1]))
        check_exists(position, epoch, count, batches)
        self._epoch, self._position, self._is_loaded = epoch, position, True
        self._has_other_plans = have_other_plans(state, own)
        self._chosen_epoch = None

    def _identity(self) -> dict[str, Any]:
        return identify(self, self._planner.cost, self._pool)

    def _own(self, plan: StepPlan) -> list[Indices]:
        if self.rank is not None:
            parts = plan.micro_batches[self.rank]
        else:
            parts = [part for slot in zip(*plan.micro_batches, strict=True) for part in slot]
        return [self._pool.expand(part) for part in parts]

    def _make_plan(self, epoch: int, index: int) -> tuple[Indices, StepPlan]:
        start, stop = self._steps(epoch).bounds(index)
        items = self._pool.take(self._order(epoch), start, stop)
        try:
            return items, self._planner.plan(self._pool.step_items(items, self._planner.cost))
        except InfeasibleError as error:
            message = f"step {index} of epoch {epoch}: {error}"
            raise InfeasibleError(message, code=error.code) from error

    def _count_targets(self, sequences: Indices) -> int:
        if self._targets is not None:
            return int(self._targets[sequences].sum(dtype=np.int64))
        return int((np.minimum(self._lengths[sequences].astype(np.int64), self._pool.limit) - 1).sum())

    def _count_batches(self, epoch: int) -> int:
        count = self.count_steps(epoch)
        if self.micro_batches is not None:
            return count * self.micro_batches * (self.ranks if self.rank is None else 1)
        return sum(len(self._own(self._plan(epoch, index)[1])) for index in range(count))

    def _order(self, epoch: int) -> EpochOrder:
        return EpochOrder(len(self._pool), self.seed, epoch, shuffle=self.shuffle)

    def _divide(self, epoch: int) -> Steps:
        return self._division.divide(self._order(epoch))
