"""The data module in Lightning: coverage, and resumption from its checkpoint."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint
from torch.utils.data import DataLoader

from batching.drawn import COST, long_tail, sampler
from helpers import refused
from hydraulis.batching.adapters.lightning_data import BalancedDataModule

LENGTHS = long_tail(60, longest=100)


class Model(lightning.LightningModule):  # type: ignore[misc]
    """Keeps the micro-batches, and checks that each is the one that the sampler has at its place."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[list[int]] = []

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        own = self.trainer.datamodule.step(index).own
        assert batch.tolist() == own[index % self.trainer.accumulate_grad_batches].tolist()
        self.seen.append(batch.tolist())
        return self.weight * batch.sum()

    def validation_step(self, _batch: torch.Tensor, _index: int) -> None:
        """Lightning validates only a module with this function."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)


class Module(BalancedDataModule):
    def val_dataloader(self) -> Any:
        rows: Any = torch.arange(4)
        return DataLoader(rows)


def make_module(workers: int = 0, lengths: Any = LENGTHS, **options: Any) -> Module:
    rows: Any = torch.arange(60)
    return Module(
        lambda sampler: DataLoader(rows, batch_sampler=sampler, collate_fn=torch.stack, num_workers=workers),
        lengths=lengths,
        cap_tokens=200,
        cost=COST,
        **options,
    )


def make_trainer(folder: Path, *callbacks: Any, accumulate: int = 2, **limits: Any) -> Any:
    return lightning.Trainer(
        accelerator="cpu",
        callbacks=list(callbacks),
        accumulate_grad_batches=accumulate,
        use_distributed_sampler=False,
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=bool(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        **limits,
    )


def train(
    folder: Path,
    *,
    save: int | None = None,
    resume: str | None = None,
    workers: int = 0,
    lengths: Any = LENGTHS,
    save_last: bool = False,
    **limits: Any,
) -> list[list[int]]:
    """Train 20 steps, and save a checkpoint after each `save` of them, or after each validation or epoch."""
    saving = ModelCheckpoint(
        folder, "step-{step}", every_n_train_steps=save, save_top_k=-1, auto_insert_metric_name=False
    )
    trainer, model = make_trainer(folder, saving, **(limits or {"max_steps": 20})), Model()
    trainer.fit(model, make_module(workers, lengths), ckpt_path=resume, weights_only=False)
    if save_last:
        trainer.save_checkpoint(folder / "last.ckpt", weights_only=False)
    return model.seen


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("done", [3, 12, 13, 15])
def test_a_resumed_training_reads_the_rest(tmp_path: Path, done: int, workers: int) -> None:
    whole = train(tmp_path, save=done, workers=workers)
    per_epoch = next(n for n in range(1, 41) if len({i for batch in whole[:n] for i in batch}) == 60)
    assert sorted(i for batch in whole[:per_epoch] for i in batch) == list(range(60))
    rest = train(tmp_path, resume=str(tmp_path / f"step-{done}.ckpt"), workers=workers)
    assert rest == whole[2 * done :]


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_of_unequal_steps_are_trained_whole_and_resumed_at_their_end(
    tmp_path: Path, workers: int
) -> None:
    """Lightning reads the number of steps once, and saves at the end of each epoch by default."""
    lengths = long_tail(60, seed=7, longest=100)
    free = sampler(lengths, ranks=1, rank=0, cap_tokens=200, micro_batches=2)
    assert [free.count_steps(epoch) for epoch in range(3)] == [12, 12, 13]
    options: dict[str, Any] = {"lengths": lengths, "max_epochs": 3, "workers": workers}
    whole = train(tmp_path, **options)
    for epoch in range(3):
        assert sorted(i for batch in whole[26 * epoch : 26 * epoch + 26] for i in batch) == list(range(60))
    for steps in (13, 26):
        rest = train(tmp_path, resume=str(tmp_path / f"step-{steps}.ckpt"), **options)
        assert rest == whole[2 * steps :]


def test_more_epochs_with_more_steps_are_refused(tmp_path: Path) -> None:
    lengths = long_tail(60, seed=7, longest=100)
    train(tmp_path, lengths=lengths, max_epochs=2)
    with refused("checkpoint_mismatch", "steps_per_epoch = 12"):
        train(tmp_path, resume=str(tmp_path / "step-12.ckpt"), lengths=lengths, max_epochs=3)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"max_epochs": 2}, {"max_epochs": 3}),
        ({"max_steps": 15}, {"max_steps": 30}),
        ({"max_steps": 24}, {"max_steps": 30}),
        ({"max_epochs": 2}, {"max_steps": 30}),
    ],
)
def test_a_checkpoint_that_is_saved_after_fit_continues_at_the_next_step(
    tmp_path: Path, first: dict[str, Any], then: dict[str, Any], workers: int
) -> None:
    """A stop by `max_steps` lies inside an epoch, which Lightning then counts as done."""
    whole = train(tmp_path, **then)
    begun = train(tmp_path, save_last=True, workers=workers, **first)
    rest = train(tmp_path, resume=str(tmp_path / "last.ckpt"), save_last=True, workers=workers, **then)
    assert begun + rest == whole
    # The positions of the resumed run are right too.
    assert train(tmp_path, resume=str(tmp_path / "last.ckpt"), **then) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_by_steps_resumes_at_the_end_of_an_epoch(tmp_path: Path, workers: int) -> None:
    whole = train(tmp_path, workers=workers, max_steps=30)
    saved = sorted(tmp_path.glob("step-*.ckpt"), key=lambda path: int(path.stem.removeprefix("step-")))
    assert len(saved) > 2
    for path in saved[:2]:
        done = 2 * int(path.stem.removeprefix("step-"))
        assert train(tmp_path / "again", resume=str(path), workers=workers, max_steps=30) == whole[done:]


def test_a_checkpoint_inside_a_step_continues_with_its_next_micro_batch(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"max_epochs": 2, "val_check_interval": 3}
    whole = train(tmp_path, **limits)
    with pytest.warns(UserWarning, match="first 1 of 2 micro-batches are lost"):
        rest = train(tmp_path, resume=str(tmp_path / "step-1.ckpt"), **limits)
    assert rest == whole[3:]


def test_a_run_that_was_stopped_inside_an_epoch_says_what_it_leaves_out(tmp_path: Path) -> None:
    class Stop(lightning.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            trainer.should_stop = trainer.global_step == 4

    trainer, model = make_trainer(tmp_path, Stop(), max_epochs=3), Model()
    trainer.fit(model, make_module())
    trainer.save_checkpoint(tmp_path / "last.ckpt", weights_only=False)
    assert len(model.seen) == 8
    whole = train(tmp_path, max_epochs=3)
    with pytest.warns(UserWarning, match="at step 4 of epoch 0, which Lightning counts as done"):
        rest = train(tmp_path, resume=str(tmp_path / "last.ckpt"), max_epochs=3)
    assert rest == whole[len(whole) // 3 :]


def test_another_number_of_accumulated_micro_batches_is_refused_inside_an_epoch(tmp_path: Path) -> None:
    sizes = {"sequences_per_step": 4}
    trainer = make_trainer(tmp_path, max_steps=4)
    trainer.fit(Model(), make_module(**sizes))
    trainer.save_checkpoint(tmp_path / "last.ckpt", weights_only=False)
    other = make_trainer(tmp_path, accumulate=4, max_steps=8)
    with refused("checkpoint_mismatch", "at step 4 of 4 micro-batches, and Lightning continues after 8"):
        other.fit(Model(), make_module(**sizes), ckpt_path=tmp_path / "last.ckpt", weights_only=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"micro_batches": 3}, "micro_batches is 3, and the trainer runs 2"),
        ({"ranks": 2}, "ranks is 2, and the trainer runs 1"),
    ],
)
def test_options_that_differ_from_the_trainer_are_refused(
    tmp_path: Path, options: dict[str, int], message: str
) -> None:
    with refused("argument_invalid", message):
        make_trainer(tmp_path, max_epochs=1).fit(Model(), make_module(**options))


def test_a_trainer_that_changes_the_steps_is_refused(tmp_path: Path) -> None:
    schedule = GradientAccumulationScheduler({0: 1, 1: 4})
    with refused("argument_invalid", "a GradientAccumulationScheduler changes the micro-batches"):
        make_trainer(tmp_path, schedule, accumulate=1, max_epochs=2).fit(Model(), make_module())
    module, connector = make_module(), SimpleNamespace(use_distributed_sampler=True)
    module.trainer = SimpleNamespace(world_size=2, callbacks=[], _accelerator_connector=connector)
    with refused("argument_invalid", "pass use_distributed_sampler=False"):
        module.setup("fit")


def test_validation_alone_needs_no_number_of_steps(tmp_path: Path) -> None:
    module = make_module()
    make_trainer(tmp_path).validate(Model(), module)
    assert module.state_dict() == {}
    with refused("argument_invalid", "before Lightning's setup for fit"):
        module.step(0)
