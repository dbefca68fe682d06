"""The balanced sampler in transformers' `Trainer` and in its subclasses, such as TRL's `SFTTrainer`.

The trainer accepts a batch sampler of this rank where its train sampler is a `BatchRebalanceSampler`
(transformers 5.23). It accumulates `gradient_accumulation_steps` micro-batches in every step, so a step has
exactly that number, with as many sequences as fit under the cap. The trainer reads the number of steps of an
epoch once, so all epochs have the same. `per_device_train_batch_size` has no effect.
The trainer counts the targets of a step over all ranks, so its loss is the mean over all of them.
"""

from collections.abc import Iterator
from typing import Any

from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState
from transformers.trainer_pt_utils import BatchRebalanceSampler

from hydraulis.batching.adapters.equal_epochs import with_equal_epochs
from hydraulis.batching.collators import TransformersCollator, check_packing
from hydraulis.batching.collators.packed_samples import MASKS
from hydraulis.batching.epoch.state import PLACE, restore
from hydraulis.batching.items.lengths import open_lengths
from hydraulis.batching.items.pool import token_limit
from hydraulis.batching.options import check_data
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
        """Compare the facts of a checkpoint with the sampler's.

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


def balance_trainer(trainer: Trainer, *, cap_tokens: int, lengths: object = None, **options: Any) -> None:
    """Let a trainer train packed micro-batches of at most `cap_tokens` tokens, balanced over its ranks.

    Every epoch of the run has as many steps as its largest one. A run that resumes with more epochs can need
    more steps, and is then refused: give `steps_per_epoch`.

    Args:
        trainer: Trainer before `train`. Its collator becomes a `TransformersCollator`, which needs a model
            that keeps packed sequences apart, as `check_packing` tells. Not checked is a model that cannot
            compute two packed sequences yet, such as a sharded one.
        cap_tokens: Most tokens of a micro-batch.
        lengths: Tokens of each sequence; None for those of the data set's column `args.length_column_name`,
            or else `input_ids`.
        options: Further options of `BalancedBatchSampler`, such as `barrier="step"` under DDP.

    Raises:
        InvalidInputError: The data set is streamed, or the trainer packs its sequences itself (code
            `argument_invalid`), or the model mixes packed sequences (`model_unsupported`). Training raises
            `lengths_invalid` if the data set has another number of
            sequences than `lengths`.
    """
    # A trainer's attributes have many types.
    own: Any = trainer
    _refuse(own)
    _check_model(own.model)

    def train_sampler(dataset: Any = None) -> TrainerSampler:
        data = own.train_dataset if dataset is None else dataset
        return TrainerSampler(_make_sampler(own, data, lengths, {"cap_tokens": cap_tokens, **options}))

    limit = token_limit(cap_tokens, options.get("pad_to", 1), options.get("pad_sequence_to", 1))
    own.data_collator = TransformersCollator(
        pad_to=options.get("pad_to", 1),
        pad_sequence_to=options.get("pad_sequence_to", 1),
        max_tokens=limit if options.get("too_long") == "truncate" else None,
    )
    own._get_train_sampler = train_sampler
    own.remove_callback(BalancedEpochs)
    own.add_callback(BalancedEpochs())


def _refuse(trainer: Any) -> None:
    """Refuse a trainer whose data the sampler cannot drive, and keep the columns of masks."""
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
    names = getattr(data, "column_names", None) or (data[0] if data is not None and len(data) else ())
    if any(name in names for name in MASKS):
        # The trainer removes the columns that the model does not take.
        arguments.remove_unused_columns = False


def _check_model(model: Any) -> None:
    """Refuse a model that mixes packed sequences, if it can compute some already."""
    if any(one.is_meta or not one.numel() for one in model.parameters()):
        return
    try:
        check_packing(model)
    except HydraulisError:
        raise
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError):
        # The forward needs other inputs, or another device.
        return


def _make_sampler(trainer: Any, data: Any, lengths: object, options: dict[str, Any]) -> BalancedBatchSampler:
    arguments = trainer.args
    column = arguments.length_column_name
    column = column if column in getattr(data, "column_names", ()) else "input_ids"
    tokens = (
        open_lengths(data, column) if lengths is None else open_lengths(lengths, options.pop("column", None))
    )
    check_data(data, len(tokens))
    defaults: dict[str, Any] = {
        "cost": trainer.model.config,
        "ranks": arguments.world_size,
        "rank": arguments.process_index,
        "micro_batches": arguments.gradient_accumulation_steps,
        "drop_last": arguments.dataloader_drop_last,
        "seed": arguments.seed if arguments.data_seed is None else arguments.data_seed,
    }
    return with_equal_epochs(
        BalancedBatchSampler(tokens, **(defaults | options)),
        epochs=None if arguments.max_steps > 0 else arguments.num_train_epochs,
        max_steps=arguments.max_steps if arguments.max_steps > 0 else None,
    )
