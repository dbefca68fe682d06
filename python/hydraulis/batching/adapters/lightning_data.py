"""The balanced sampler in Lightning: a data module whose state is the sampler's.

Lightning numbers epochs and batches on its own, and its numbers are not always the sampler's: a checkpoint
of a run that `max_steps` ended inside an epoch counts that epoch as done. So the sampler's position decides,
and the data module compares it with Lightning's when a run resumes.
"""

import warnings
from collections.abc import Callable
from typing import Any

import lightning
from lightning.pytorch.callbacks import GradientAccumulationScheduler

from hydraulis.batching.adapters.equal_epochs import with_equal_epochs
from hydraulis.batching.items.lengths import open_lengths
from hydraulis.batching.options import check_data
from hydraulis.batching.sampler import BalancedBatchSampler
from hydraulis.batching.step_planner import BalancedStep
from hydraulis.errors import InvalidInputError


class LightningSampler(BalancedBatchSampler):
    """A sampler that continues a loaded position whatever number Lightning gives its epoch.

    Lightning's later numbers keep their distance to the sampler's.

    Attributes:
        count_trained: Function that returns the number of micro-batches that Lightning has trained.
    """

    count_trained: Callable[[], int]
    _loaded: dict[str, Any] | None = None
    _trained: int | None = None
    _distance = 0

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a saved position in the next iteration."""
        super().load_state_dict(state)
        self._loaded, self._trained = state, None

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration by Lightning's number."""
        trained = self.count_trained()
        if self._loaded is None or self._trained not in (None, trained):
            self._loaded = None
            super().set_epoch(epoch + self._distance)
            return
        if self._trained is not None:
            # A run by steps that resumes at the end of an epoch first has an epoch without a batch. Workers
            # that read ahead have begun the loaded one for it.
            super().load_state_dict(self._loaded)
        self._trained = trained
        self._distance = self._loaded["epoch"] - epoch


class BalancedDataModule(lightning.LightningDataModule):  # type: ignore[misc]
    """A data module for `lightning.Trainer(use_distributed_sampler=False)`.

    A step has `accumulate_grad_batches` micro-batches on every rank, and every epoch of the run as many steps
    as its largest one. Lightning saves the sampler's state with its checkpoints and loads it when it resumes.
    A run that resumes with more epochs can need more steps, and is then refused: give `steps_per_epoch`.

    Args:
        make_loader: Function from the sampler to a loader with it as `batch_sampler`.
        lengths: Tokens of each sequence, as `BalancedBatchSampler` takes them.
        options: Options of `BalancedBatchSampler` other than the ranks and the number of micro-batches.

    Attributes:
        sampler: Sampler of this rank, once Lightning has set the module up for `fit`.
    """

    def __init__(
        self, make_loader: Callable[[BalancedBatchSampler], Any], lengths: object, **options: Any
    ) -> None:
        super().__init__()
        self._make_loader = make_loader
        self._lengths = lengths
        self._options = options
        self.sampler: LightningSampler | None = None

    def setup(self, stage: str) -> None:
        """Make the sampler of this rank, for training alone.

        Raises:
            InvalidInputError: The trainer would change the micro-batches or their number, or an option has
                another value than the trainer's (code `argument_invalid`).
        """
        if stage != "fit":
            return
        trainer = self.trainer
        _check_trainer(trainer)
        own = {
            "micro_batches": trainer.accumulate_grad_batches,
            "ranks": trainer.world_size,
            "rank": trainer.global_rank,
        }
        for name, value in own.items():
            if self._options.get(name, value) != value:
                message = (
                    f"{name} is {self._options[name]!r}, and the trainer runs {value}: leave {name} out"
                    f"{', and set accumulate_grad_batches' if name == 'micro_batches' else ''}"
                )
                raise InvalidInputError(message, code="argument_invalid")
        options = self._options | own
        lengths = open_lengths(self._lengths, options.pop("column", None))
        sampler = LightningSampler(lengths, **options)
        self.sampler = with_equal_epochs(sampler, epochs=trainer.max_epochs, max_steps=trainer.max_steps)
        self.sampler.count_trained = lambda: int(self._batches.total.processed)

    def step(self, index: int) -> BalancedStep:
        """Return the step of a micro-batch of the running epoch.

        Args:
            index: Number of the micro-batch, the `batch_idx` of `training_step`.
        """
        sampler = self._ready_sampler
        # Workers that read ahead may have moved the sampler to the next epoch.
        return sampler.step(index // self.trainer.accumulate_grad_batches, epoch=sampler.begun.epoch)

    def train_dataloader(self) -> Any:
        """Make the loader.

        Raises:
            InvalidInputError: Its data set has another number of sequences than the lengths (code
                `lengths_invalid`), or the loaded state has another position than Lightning
                (`checkpoint_mismatch`).
        """
        sampler = self._ready_sampler
        fit_loop = self.trainer.fit_loop
        if sampler.is_loaded:
            self._compare_position(sampler)
        else:
            # Workers begin the epoch before Lightning sets it.
            sampler.set_epoch(fit_loop.epoch_progress.current.processed)
        loader = self._make_loader(sampler)
        check_data(getattr(loader, "dataset", None), sampler.num_sequences)
        return loader

    def state_dict(self) -> dict[str, Any]:
        """Return the sampler's state at the next micro-batch; nothing before training."""
        sampler = self.sampler
        if sampler is None:
            return {}
        if sampler.is_loaded or not sampler.begun.number:
            return sampler.state_dict()
        # Callbacks save before Lightning counts a batch as completed.
        done = self._batches.current.processed
        if done >= self.trainer.num_training_batches:
            return sampler.state_at(0, epoch=sampler.begun.epoch + 1)
        step, batch = divmod(done, self.trainer.accumulate_grad_batches)
        return sampler.state_at(step, epoch=sampler.begun.epoch, batch=batch)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue at a saved state."""
        if state_dict:
            self._ready_sampler.load_state_dict(state_dict)

    @property
    def _ready_sampler(self) -> LightningSampler:
        if self.sampler is None:
            message = "the data module has no sampler before Lightning's setup for fit: call Trainer.fit"
            raise InvalidInputError(message, code="argument_invalid")
        return self.sampler

    @property
    def _batches(self) -> Any:
        """Lightning's counts of micro-batches."""
        return self.trainer.fit_loop.epoch_loop.batch_progress

    def _compare_position(self, sampler: LightningSampler) -> None:
        """Compare a loaded position with Lightning's, which has loaded its own counts by now."""
        own, per_step = sampler.next_position, self.trainer.accumulate_grad_batches
        expected = own.step * per_step + own.batch
        # Lightning begins an epoch again unless it counts the saved one as unfinished.
        begins = self._batches.current.processed if self.trainer.fit_loop.restarting else 0
        if begins == 0 and expected:
            warnings.warn(
                f"the checkpoint is at step {own.step} of epoch {sampler.epoch}, which Lightning counts as "
                "done: its other steps are left out",
                stacklevel=2,
            )
            sampler.load_state_dict(sampler.state_at(0, epoch=sampler.epoch + 1))
        elif expected and begins != expected:
            message = (
                f"the checkpoint is at step {own.step} of {per_step} micro-batches, and Lightning continues "
                f"after {begins}: resume with the checkpoint's accumulate_grad_batches"
            )
            raise InvalidInputError(message, code="checkpoint_mismatch")
        elif own.batch:
            warnings.warn(
                f"the checkpoint is inside step {own.step}: Lightning saves no gradients, so those of its "
                f"first {own.batch} of {per_step} micro-batches are lost; save after whole steps, with "
                "every_n_train_steps or a val_check_interval that accumulate_grad_batches divides",
                stacklevel=2,
            )


def _check_trainer(trainer: lightning.Trainer) -> None:
    """Refuse a trainer that changes the sampler or the number of micro-batches."""
    if trainer.world_size > 1 and trainer._accelerator_connector.use_distributed_sampler:
        message = (
            f"the trainer has {trainer.world_size} ranks, and would divide the batches of each a second "
            "time: pass use_distributed_sampler=False to lightning.Trainer"
        )
        raise InvalidInputError(message, code="argument_invalid")
    for callback in trainer.callbacks:
        if (
            isinstance(callback, GradientAccumulationScheduler)
            and callback.going_to_accumulate_grad_batches()
        ):
            message = (
                "a GradientAccumulationScheduler changes the micro-batches of a step during the run, and "
                "the steps are planned with one number: use accumulate_grad_batches"
            )
            raise InvalidInputError(message, code="argument_invalid")
