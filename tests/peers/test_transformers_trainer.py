"""The sampler in transformers' `Trainer`; the cases follow its tests of rebalancing and resumption."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from batching.drawn import long_tail, sampler
from helpers import refused
from hydraulis.batching import open_lengths
from hydraulis.batching.adapters.transformers_trainer import TrainerSampler, balance_trainer
from peers.launch import findings

LENGTHS = long_tail(60, longest=100)


def data(lengths: Any = LENGTHS) -> Dataset:
    rows = [[index + 1] * int(size) for index, size in enumerate(lengths)]
    return Dataset.from_dict({"input_ids": rows})


class Recorder(Trainer):
    """A trainer that remembers the sequences of each micro-batch, by their token."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.seen: list[list[int]] = []

    def training_step(self, model: Any, inputs: Any, *others: Any) -> torch.Tensor:
        self.seen.append(sorted(set((inputs["input_ids"] - 1).flatten().tolist())))
        loss: torch.Tensor = super().training_step(model, inputs, *others)
        return loss


class StopAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        if state.global_step == self.step:
            control.should_save = control.should_training_stop = True
        return control


def make_trainer(
    folder: Path, *, epochs: int = 2, rows: Any = None, max_steps: int = -1, **options: Any
) -> Recorder:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    arguments = TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        num_train_epochs=epochs,
        max_steps=max_steps,
        gradient_accumulation_steps=2,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Recorder(
        model=LlamaForCausalLM(config), args=arguments, train_dataset=data() if rows is None else rows
    )
    balance_trainer(trainer, cap_tokens=200, **options)
    return trainer


def test_each_epoch_trains_every_sequence_once_in_another_order(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    trainer.train()
    assert Counter(i for batch in trainer.seen for i in batch) == Counter(list(range(60)) * 2)
    assert max(int(LENGTHS[batch].sum()) for batch in trainer.seen) <= 200
    half = len(trainer.seen) // 2
    assert trainer.seen[:half] != trainer.seen[half : 2 * half]
    assert trainer.state.global_step * 2 == len(trainer.seen)


@pytest.mark.parametrize("stop", [2, 11])
def test_a_resumed_training_reads_the_rest(tmp_path: Path, stop: int) -> None:
    whole = make_trainer(tmp_path / "whole")
    whole.train()
    assert whole.state.global_step > 12
    first = make_trainer(tmp_path / "first")
    first.add_callback(StopAt(stop))
    first.train()
    second = make_trainer(tmp_path / "first")
    second.train(resume_from_checkpoint=True)
    assert first.seen + second.seen == whole.seen
    expected = [entry["loss"] for entry in whole.state.log_history if "loss" in entry]
    assert [entry["loss"] for entry in second.state.log_history if "loss" in entry] == expected


@pytest.mark.parametrize("stop", [12, 20])
def test_epochs_of_unequal_steps_are_trained_whole_and_resumed(tmp_path: Path, stop: int) -> None:
    """The trainer reads the number of steps once."""
    lengths = long_tail(60, seed=4, longest=100)
    free = sampler(lengths, ranks=1, rank=0, cap_tokens=200, micro_batches=2, seed=42)
    assert [free.count_steps(epoch) for epoch in range(3)] == [12, 13, 12]
    options: dict[str, Any] = {"epochs": 3, "rows": data(lengths)}
    whole = make_trainer(tmp_path / "whole", **options)
    whole.train()
    assert whole.state.global_step == 39
    for epoch in range(3):
        seen = Counter(i for batch in whole.seen[26 * epoch : 26 * epoch + 26] for i in batch)
        assert seen == Counter(range(60))
    first = make_trainer(tmp_path / "first", **options)
    first.add_callback(StopAt(stop))
    first.train()
    second = make_trainer(tmp_path / "first", **options)
    second.train(resume_from_checkpoint=True)
    assert first.seen + second.seen == whole.seen


def test_a_streamed_data_set_is_refused(tmp_path: Path) -> None:
    with refused("argument_invalid", "IterableDataset"):
        make_trainer(tmp_path, rows=data().to_iterable_dataset(), max_steps=4)
    with refused("lengths_invalid", "IterableDataset"):
        open_lengths(data().to_iterable_dataset(), "input_ids")


def test_masked_targets_do_not_count(tmp_path: Path) -> None:
    masks = [[0] * (int(size) // 2) + [1] * (int(size) - int(size) // 2) for size in LENGTHS]
    trainer = make_trainer(tmp_path, rows=data().add_column("loss_mask", masks))
    labels = [batch["labels"] for batch in trainer.get_train_dataloader()]
    expected = sum(sum(mask[1:]) for mask in masks)
    assert sum(int((one != -100).sum()) for one in labels) == expected


@pytest.mark.parametrize("keeps", [False, True])
def test_labels_alone_count_as_in_the_trainer(tmp_path: Path, *, keeps: bool) -> None:
    """TRL's labels have the masks that apply; it keeps a mask that does not."""
    rows = data().add_column("labels", data()["input_ids"])
    rows = rows.add_column("completion_mask", [[0] * int(size) for size in LENGTHS])
    trainer = make_trainer(tmp_path, rows=rows)
    trainer.args.remove_unused_columns = not keeps
    labels = [batch["labels"] for batch in trainer.get_train_dataloader()]
    assert sum(int((one != -100).sum()) for one in labels) == sum(int(size) - 1 for size in LENGTHS)


def test_the_loss_is_the_mean_over_the_targets_of_the_step(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, epochs=1)
    torch.manual_seed(1)
    model: Any = trainer.model
    with torch.no_grad():
        sampler = trainer._get_train_sampler()
        assert isinstance(sampler, TrainerSampler)
        step = sampler.balanced.step(0)
        total = 0.0
        for part in step.own:
            for sequence in part.tolist():
                tokens = torch.tensor([data()[sequence]["input_ids"]])
                if tokens.numel() > 1:
                    total += float(model(tokens, labels=tokens).loss) * (tokens.numel() - 1)
    trainer.train()
    found = next(float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry)
    assert found == pytest.approx(total / step.targets, rel=1e-4)


def test_a_column_has_the_lengths_before_the_trainer_removes_it(tmp_path: Path) -> None:
    """By default the trainer removes the columns that the model does not take."""
    lengths = [int(size) for size in LENGTHS[::-1]]
    trainer = make_trainer(tmp_path, rows=data().add_column("length", lengths))
    assert trainer.args.remove_unused_columns
    loader: Any = trainer.get_train_dataloader()
    # accelerate's shard wraps it.
    one = getattr(loader.batch_sampler, "batch_sampler", loader.batch_sampler)
    assert one.balanced.lengths.tolist() == lengths


def test_two_processes_train_every_sequence_once_and_resume(tmp_path: Path) -> None:
    ranks = findings("transformers_ranks.py", tmp_path)
    seen = Counter(i for rank in ranks for batch in rank["seen"] for i in batch)
    assert seen == Counter(list(range(60)) * 2)
    assert len({len(rank["seen"]) for rank in ranks}) == 1
    for rank in ranks:
        assert rank["shard"] == ["BatchSamplerShard", 1, "TrainerSampler"]
        assert rank["resumed_seen"] == [rank["seen"]] * 2
        assert ranks[0]["losses"][0] == pytest.approx(rank["mean_loss"], rel=1e-4)
    assert len(ranks[0]["losses"]) > 6
    assert ranks[0]["resumed_losses"] == [ranks[0]["losses"]] * 2
