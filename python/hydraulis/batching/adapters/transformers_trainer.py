"""The balanced sampler in transformers' `Trainer` and in its subclasses, such as TRL's `SFTTrainer`.

The trainer accepts a batch sampler of this rank where its train sampler is a `BatchRebalanceSampler`
(transformers 5.23). It accumulates `gradient_accumulation_steps` micro-batches in every step, so a step has
exactly that number, with as many sequences as fit under the cap. `per_device_train_batch_size` has no effect.
The trainer counts the targets of a step over all ranks, so its loss is the mean over all of them.
"""

from collections.abc import Iterator
from typing import Any

from transformers import Trainer
from transformers.trainer_pt_utils import BatchRebalanceSampler

from hydraulis.batching.collators import TransformersCollator
from hydraulis.batching.sampler import BalancedBatchSampler


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


def balance_trainer(trainer: Trainer, *, cap_tokens: int, lengths: object = None, **options: Any) -> None:
    """Let a trainer train packed micro-batches of at most `cap_tokens` tokens, balanced over its ranks.

    Args:
        trainer: Trainer before `train`. Its collator becomes a `TransformersCollator`, which needs a model
            whose attention keeps packed sequences apart (every attention of transformers 5).
        cap_tokens: Most tokens of a micro-batch.
        lengths: Tokens of each sequence; None for those of the data set's column `args.length_column_name`,
            or else `input_ids`.
        options: Further options of `BalancedBatchSampler`, such as `barrier="step"` under DDP.
    """
    # A trainer's attributes have many types.
    own: Any = trainer
    arguments = own.args

    def train_sampler(dataset: Any = None) -> TrainerSampler:
        data = own.train_dataset if dataset is None else dataset
        column = arguments.length_column_name
        column = column if column in getattr(data, "column_names", ()) else "input_ids"
        defaults: dict[str, Any] = {
            "cost": own.model.config,
            "ranks": arguments.world_size,
            "rank": arguments.process_index,
            "micro_batches": arguments.gradient_accumulation_steps,
            "drop_last": arguments.dataloader_drop_last,
            "seed": arguments.seed if arguments.data_seed is None else arguments.data_seed,
            "column": column if lengths is None else None,
        }
        source = data if lengths is None else lengths
        return TrainerSampler(BalancedBatchSampler(source, cap_tokens=cap_tokens, **(defaults | options)))

    own.data_collator = TransformersCollator(
        pad_to=options.get("pad_to", 1),
        max_tokens=cap_tokens if options.get("too_long") == "truncate" else None,
    )
    own._get_train_sampler = train_sampler
