"""The balanced sampler in Lightning: a data module whose state is the sampler's."""

from collections.abc import Callable
from typing import Any

import lightning

from hydraulis.batching.adapters.equal_epochs import with_equal_epochs
from hydraulis.batching.items.lengths import open_lengths
from hydraulis.batching.options import check_data
from hydraulis.batching.sampler import BalancedBatchSampler


class BalancedDataModule(lightning.LightningDataModule):  # type: ignore[misc]
    """A data module for `lightning.Trainer(use_distributed_sampler=False)`.

    A step has `accumulate_grad_batches` micro-batches on every rank, and every epoch of the run as many steps
    as its largest one. Lightning saves the sampler's state with its checkpoints and loads it when it resumes.
    A run that resumes with more epochs can need more steps, and is then refused: give `steps_per_epoch`.

    Args:
        make_loader: Function from the sampler to a loader with it as `batch_sampler`.
        lengths: Tokens of each sequence, as `BalancedBatchSampler` takes them.
        options: Options of `BalancedBatchSampler` other than the ranks and the number of micro-batches.
    """

    def __init__(
        self, make_loader: Callable[[BalancedBatchSampler], Any], lengths: object, **options: Any
    ) -> None:
        super().__init__()
        self._make_loader = make_loader
        self._lengths = lengths
        self._options = options
        self._state: dict[str, Any] | None = None
        self.sampler: BalancedBatchSampler

    def setup(self, stage: str) -> None:  # noqa: ARG002  Lightning names the argument
        """Make the sampler of this rank."""
        trainer = self.trainer
        options = {"micro_batches": trainer.accumulate_grad_batches} | self._options
        lengths = open_lengths(self._lengths, options.pop("column", None))
        sampler = BalancedBatchSampler(
            lengths, **({"ranks": trainer.world_size, "rank": trainer.global_rank} | options)
        )
        self.sampler = with_equal_epochs(sampler, epochs=trainer.max_epochs, max_steps=trainer.max_steps)

    def train_dataloader(self) -> Any:
        """Make the loader.

        Raises:
            InvalidInputError: Its data set has another number of sequences than the lengths (code
                `lengths_invalid`).
        """
        loader = self._make_loader(self.sampler)
        check_data(getattr(loader, "dataset", None), self.sampler.num_sequences)
        return loader

    def state_dict(self) -> dict[str, Any]:
        """Return the sampler's state at the start of the next step."""
        # Callbacks save before Lightning counts a batch as completed.
        step = self.trainer.fit_loop.epoch_loop.batch_progress.current.processed
        per_step = self.trainer.accumulate_grad_batches
        return self.sampler.state_at(step // per_step, epoch=self.trainer.current_epoch)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue at a saved state."""
        self.sampler.load_state_dict(state_dict)
