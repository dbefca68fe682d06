"""The balanced sampler in transformers' `Trainer` and in its subclasses, such as TRL's `SFTTrainer`.

The trainer accepts a batch sampler of this rank where its train sampler is a `BatchRebalanceSampler`
(transformers 5.23). It accumulates `gradient_accumulation_steps` micro-batches in every step, so a step has
exactly that number, with as many sequences as fit under the cap. The trainer reads the number of steps of an
epoch once, so all epochs have the same. `per_device_train_batch_size` has no effect.
The trainer counts the targets of a step over all ranks, so its loss is the mean over all of them.
"""

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial, wraps
from typing import Any

from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState
from transformers.trainer_pt_utils import BatchRebalanceSampler

from hydraulis.batching.adapters.equal_epochs import with_equal_epochs
from hydraulis.batching.collators import TransformersCollator, check_packing
from hydraulis.batching.collators.packed_samples import MASKS, Sample
from hydraulis.batching.epoch.state import PLACE, restore
from hydraulis.batching.items.lengths import Lengths, open_lengths
from hydraulis.batching.items.pool import token_limit
from hydraulis.batching.options import check_data, check_padding, to_whole
from hydraulis.batching.sampler import BalancedBatchSampler
from hydraulis.errors import HydraulisError, InvalidInputError


class TrainerSampler(BatchRebalanceSampler):
    """A `BalancedBatchSampler` of the type that the trainer accepts.

    Args:
        balanced: Sampler of this rank.
    """

    def __init__(self, balanced: BalancedBatchSampler) -> None:
        self.balanced = balanced
        self.batch_size = None
        self.drop_last = False

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the micro-batches of the rank."""
        return iter(self.balanced)

    def __len__(self) -> int:
        """Count the micro-batches of an epoch."""
        return len(self.balanced)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration."""
        self.balanced.set_epoch(epoch)


class BalancedEpochs(TrainerCallback, ExportableState):
    """The sampler's facts in a trainer's checkpoints: the trainer resumes by its number of steps alone.

    Attributes:
        facts: State of the sampler at its start; None before training.
    """

    facts: dict[str, Any] | None = None

    def state(self) -> dict[str, Any]:
        """Return the facts as the trainer saves them."""
        return {"args": {}, "attributes": {"facts": self.facts}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Compare the facts of a checkpoint with the sampler's, and choose the epoch of the next step.

        Raises:
            InvalidInputError: The checkpoint has other sequences, another seed or other steps (code
                `checkpoint_mismatch`).
        """
        sampler = kwargs["train_dataloader"].batch_sampler
        while not isinstance(sampler, TrainerSampler):
            sampler = sampler.batch_sampler
        self.facts = sampler.balanced.state_at(0, epoch=0)
        saved = state.stateful_callbacks.get(type(self).__name__, {}).get("attributes", {}).get("facts")
        if state.global_step and saved is not None:
            restore(saved, {name: value for name, value in self.facts.items() if name not in PLACE})
        # On several ranks accelerate's `skip_first_batches` hides the sampler from the trainer's `set_epoch`.
        sampler.set_epoch(state.global_step // sampler.balanced.num_steps)


def balance_trainer(trainer: Trainer, *, cap_tokens: int, lengths: object = None, **options: Any) -> None:
    """Let a trainer train packed micro-batches of at most `cap_tokens` tokens, balanced over its ranks.

    Every epoch of the run has as many steps as its largest one. A run that resumes with more epochs can need
    more steps, and is then refused: give `steps_per_epoch`.

    Args:
        trainer: Trainer before `train`. Its training loader takes a `TransformersCollator` in place of its
            collator, which evaluation and prediction keep. The model must be one that keeps packed
            sequences apart, as `check_packing` tells. A warning names a model that cannot compute two packed
            sequences yet, such as a sharded one.
        cap_tokens: Most tokens of a micro-batch. Longer micro-batches, of data with more tokens than
            `lengths`, are refused in training (code `micro_batch_invalid`).
        lengths: Tokens of each sequence; None for those of the data set's column `args.length_column_name`,
            or else `input_ids`.
        options: Further options of `BalancedBatchSampler`, such as `barrier="step"` under DDP.

    Raises:
        InvalidInputError: The data set is streamed, the trainer packs its sequences itself, or its options
            distribute batches or count targets in another way, or its loss does not divide by the targets of
            a step, or `options` have other ranks or micro-batches (code `argument_invalid`), or the model
            mixes packed sequences (`model_unsupported`). The data set has no column for `lengths` of None
            (`lengths_invalid`); training raises the same if it has another number of sequences than
            `lengths`.
    """
    # A trainer's attributes have many types.
    own: Any = trainer
    _refuse(own)
    for name, value in _step_options(own.args).items():
        _refuse_other(options, name, value)
    if lengths is None:
        _refuse_unknown_lengths(own.train_dataset, own.args.length_column_name)
    _check_model(own)

    def train_sampler(dataset: Any = None) -> TrainerSampler:
        data = own.train_dataset if dataset is None else dataset
        return TrainerSampler(_make_sampler(own, data, lengths, {"cap_tokens": cap_tokens, **options}))

    pad_to, pad_sequence_to = (
        to_whole(name, options.get(name, 1), 1) for name in ("pad_to", "pad_sequence_to")
    )
    check_padding(cap_tokens, pad_to, pad_sequence_to)
    limit = token_limit(cap_tokens, pad_to, pad_sequence_to)
    collator = TransformersCollator(
        pad_to=pad_to,
        pad_sequence_to=pad_sequence_to,
        max_tokens=limit if options.get("too_long") == "truncate" else None,
        cap_tokens=cap_tokens,
    )
    own.get_train_dataloader = _with_collator(own, collator)
    own._get_train_sampler = train_sampler
    own.remove_callback(BalancedEpochs)
    own.add_callback(BalancedEpochs())


def _with_collator(trainer: Any, collator: TransformersCollator) -> Callable[[], DataLoader[Any]]:
    """Return the trainer's `get_train_dataloader` with a collator and the columns of masks that it reads."""
    # A second call replaces the collator of the first.
    make_loader = getattr(trainer.get_train_dataloader, "__wrapped__", trainer.get_train_dataloader)

    @wraps(make_loader)
    def get_train_dataloader() -> DataLoader[Any]:
        arguments = trainer.args
        before = trainer.data_collator, arguments.remove_unused_columns
        columns = _columns(trainer.train_dataset)
        trainer.data_collator = collator
        if "labels" in columns:
            trainer.data_collator = partial(_collate_labels, collator)
        elif any(name in columns for name in MASKS):
            # The trainer removes the columns that the model does not take.
            arguments.remove_unused_columns = False
        try:
            loader: DataLoader[Any] = make_loader()
        finally:
            trainer.data_collator, arguments.remove_unused_columns = before
        return loader

    return get_train_dataloader


def _collate_labels(collator: TransformersCollator, samples: Sequence[Sample]) -> dict[str, Any]:
    """Collate samples by their labels alone: TRL keeps the masks that it does not apply."""
    return collator([{name: value for name, value in one.items() if name not in MASKS} for one in samples])


def _columns(data: Any) -> Collection[str]:
    names: Collection[str] | None = getattr(data, "column_names", None)
    return names or (data[0] if data is not None and len(data) else ())


def _refuse(trainer: Any) -> None:
    """Refuse a trainer whose data the sampler cannot drive, or whose options contradict it."""
    data, arguments = trainer.train_dataset, trainer.args
    if data is not None and not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        message = (
            f"train_dataset is a {type(data).__name__}, which is streamed: the sampler needs the length of "
            "each sequence; load the data set without streaming"
        )
        raise InvalidInputError(message, code="argument_invalid")
    if getattr(arguments, "packing", False):
        message = "args.packing is True: the sampler packs the sequences itself; set it to False"
        raise InvalidInputError(message, code="argument_invalid")
    accelerated = getattr(arguments, "accelerator_config", None)
    for name in ("split_batches", "dispatch_batches"):
        if getattr(accelerated, name, None):
            message = (
                f"accelerator_config.{name} is True: it divides a rank's micro-batches over all; set it "
                "to False"
            )
            raise InvalidInputError(message, code="argument_invalid")
    if arguments.world_size > 1 and not arguments.average_tokens_across_devices:
        message = (
            f"average_tokens_across_devices is False with {arguments.world_size} ranks: the loss would be no "
            "mean over all targets, because ranks have different numbers of them; set it to True"
        )
        raise InvalidInputError(message, code="argument_invalid")
    if not trainer.model_accepts_loss_kwargs and trainer.compute_loss_func is None:
        message = (
            f"{type(trainer.model).__name__} does not take num_items_in_batch (its accepts_loss_kwargs is "
            "False, or its forward has no **kwargs), and the trainer has no compute_loss_func: the loss "
            "would be the mean of the micro-batches' means, and no mean over all targets; pass a "
            "compute_loss_func that divides by num_items_in_batch"
        )
        raise InvalidInputError(message, code="argument_invalid")


def _step_options(arguments: Any) -> dict[str, int]:
    """Return the ranks and micro-batches of a step, as the trainer runs them."""
    return {
        "ranks": arguments.world_size,
        "rank": arguments.process_index,
        "micro_batches": arguments.gradient_accumulation_steps,
    }


def _refuse_other(options: dict[str, Any], name: str, value: int) -> None:
    """Refuse an option with another value than the trainer's: ranks would wait for one another forever."""
    if options.get(name, value) != value:
        remedy = " set gradient_accumulation_steps and" if name == "micro_batches" else ""
        message = f"{name} is {options[name]!r}, and the trainer runs {value};{remedy} leave {name} out"
        raise InvalidInputError(message, code="argument_invalid")


def _refuse_unknown_lengths(data: Any, column: str) -> None:
    """Refuse a data set whose lengths no column has."""
    if data is None or any(name in getattr(data, "column_names", ()) for name in (column, "input_ids")):
        return
    message = (
        f"train_dataset is a {type(data).__name__} without a column '{column}' or 'input_ids', from which "
        "the lengths would be read: pass lengths=[len(row['input_ids']) for row in train_dataset]"
    )
    raise InvalidInputError(message, code="lengths_invalid")


def _check_model(trainer: Any) -> None:
    """Refuse a model that mixes packed sequences; warn of one that cannot compute some yet."""
    model = trainer.model
    reason = "it has parameters without values"
    if not any(one.is_meta or not one.numel() for one in model.parameters()):
        try:
            check_packing(model)
        except HydraulisError:
            raise
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:
            # The forward needs other inputs, or another device.
            reason = f"{type(error).__name__}: {error}"
        else:
            return
    if trainer.args.process_index == 0:
        message = (
            f"{type(model).__name__} was not checked: two packed sequences cannot be computed before "
            f"training ({reason}). If it mixes packed sequences, the training is wrong without an error; "
            "call check_packing on a small model of its kind, with the same attn_implementation"
        )
        warnings.warn(message, stacklevel=3)


def _make_sampler(trainer: Any, data: Any, lengths: object, options: dict[str, Any]) -> BalancedBatchSampler:
    arguments = trainer.args
    if lengths is None:
        tokens = _own_lengths(trainer.train_dataset, data, arguments.length_column_name)
    else:
        tokens = open_lengths(lengths, options.pop("column", None))
    check_data(data, len(tokens))
    defaults: dict[str, Any] = {
        **_step_options(arguments),
        "cost": trainer.model.config,
        "drop_last": arguments.dataloader_drop_last,
        "seed": arguments.seed if arguments.data_seed is None else arguments.data_seed,
    }
    return with_equal_epochs(
        BalancedBatchSampler(tokens, **(defaults | options)),
        epochs=None if arguments.max_steps > 0 else arguments.num_train_epochs,
        max_steps=arguments.max_steps if arguments.max_steps > 0 else None,
    )


def _own_lengths(whole: Any, data: Any, column: str) -> Lengths:
    """Open the lengths of a data set, from which the trainer may have removed the column with them."""
    if (
        column not in getattr(data, "column_names", ())
        and hasattr(whole, "__len__")
        and len(whole) == len(data)
    ):
        data = whole
    return open_lengths(data, column if column in getattr(data, "column_names", ()) else "input_ids")
