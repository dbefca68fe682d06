"""Refusals before training; `tests/peers/test_transformers_trainer.py` trains."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import IterableDataset
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

from batching.drawn import long_tail
from helpers import refused
from hydraulis.batching.adapters.transformers_trainer import BalancedEpochs, balance_trainer

LENGTHS = long_tail(60, longest=100)
ROWS: Any = [{"input_ids": [index + 1] * int(size)} for index, size in enumerate(LENGTHS)]

CONFIG = LlamaConfig(
    vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(ROWS)


def make_trainer(folder: Path, rows: Any = ROWS, **options: Any) -> Any:
    arguments = TrainingArguments(
        str(folder), use_cpu=True, gradient_accumulation_steps=2, report_to=[], max_steps=4, **options
    )
    return Trainer(model=LlamaForCausalLM(CONFIG), args=arguments, train_dataset=rows)


def test_a_streamed_data_set_is_refused(tmp_path: Path) -> None:
    with refused("argument_invalid", "Stream", "without streaming"):
        balance_trainer(make_trainer(tmp_path, Stream()), cap_tokens=200, lengths=LENGTHS)


@pytest.mark.parametrize(
    "options", [{"micro_batches": None}, {"micro_batches": 3}, {"ranks": 2}, {"rank": 1}]
)
def test_other_ranks_and_micro_batches_than_the_trainers_are_refused(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """With other micro-batches in a step, one rank would wait for another forever."""
    with refused("argument_invalid", *options, "leave"):
        balance_trainer(make_trainer(tmp_path), cap_tokens=200, lengths=LENGTHS, **options)
    balance_trainer(make_trainer(tmp_path), cap_tokens=200, lengths=LENGTHS, micro_batches=2, ranks=1, rank=0)


def test_a_trainer_that_packs_is_refused() -> None:
    trainer: Any = SimpleNamespace(train_dataset=ROWS, args=SimpleNamespace(packing=True))
    with refused("argument_invalid", "args.packing"):
        balance_trainer(trainer, cap_tokens=200, lengths=LENGTHS)


def test_a_model_that_mixes_packed_sequences_is_refused(tmp_path: Path) -> None:
    config = BloomConfig(vocab_size=64, hidden_size=16, n_layer=1, n_head=2)
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, report_to=[])
    trainer = Trainer(model=BloomForCausalLM(config), args=arguments, train_dataset=ROWS)
    with refused("model_unsupported", "BloomForCausalLM"):
        balance_trainer(trainer, cap_tokens=200, lengths=LENGTHS)


@pytest.mark.parametrize("name", ["split_batches", "dispatch_batches"])
def test_batches_that_accelerate_divides_are_refused(tmp_path: Path, name: str) -> None:
    trainer = make_trainer(tmp_path, accelerator_config={name: True})
    with refused("argument_invalid", f"accelerator_config.{name} is True"):
        balance_trainer(trainer, cap_tokens=200, lengths=LENGTHS)


def test_targets_are_counted_over_all_ranks() -> None:
    arguments = SimpleNamespace(world_size=2, average_tokens_across_devices=False)
    trainer: Any = SimpleNamespace(train_dataset=ROWS, args=arguments)
    with refused("argument_invalid", "average_tokens_across_devices is False", "2 ranks"):
        balance_trainer(trainer, cap_tokens=200, lengths=LENGTHS)


class OwnLoss(LlamaForCausalLM):  # type: ignore[no-untyped-call]
    accepts_loss_kwargs = False


class FixedArguments(LlamaForCausalLM):  # type: ignore[no-untyped-call]
    def forward(self, input_ids: Any = None, labels: Any = None, position_ids: Any = None) -> Any:
        return super().forward(input_ids, labels=labels, position_ids=position_ids)


@pytest.mark.parametrize("kind", [OwnLoss, FixedArguments])
def test_a_mean_of_means_is_refused(tmp_path: Path, kind: type[LlamaForCausalLM]) -> None:
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, report_to=[])
    trainer = Trainer(model=kind(CONFIG), args=arguments, train_dataset=ROWS)
    with refused("argument_invalid", kind.__name__, "num_items_in_batch", "pass a compute_loss_func"):
        balance_trainer(trainer, cap_tokens=200, lengths=LENGTHS)


def test_an_own_loss_is_the_mean_over_the_targets_of_a_step(tmp_path: Path) -> None:
    """The remedy of the refusal trains as a model that takes the number of targets does."""

    def mean(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        logits, targets = outputs.logits[0, :-1], labels[0, 1:]
        total: torch.Tensor = cross_entropy(logits, targets, reduction="sum") / num_items_in_batch
        return total

    trained = []
    for kind, compute in ((LlamaForCausalLM, None), (OwnLoss, mean)):
        arguments = TrainingArguments(
            str(tmp_path), use_cpu=True, report_to=[], max_steps=2, gradient_accumulation_steps=2
        )
        torch.manual_seed(0)
        model = kind(CONFIG)
        trainer = Trainer(model=model, args=arguments, train_dataset=ROWS, compute_loss_func=compute)
        balance_trainer(trainer, cap_tokens=200, lengths=LENGTHS)
        trainer.train()
        trained.append(model.state_dict())
    for name, value in trained[0].items():
        torch.testing.assert_close(trained[1][name], value, rtol=1e-4, atol=1e-6)


def test_a_data_set_without_columns_needs_lengths(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    with refused("lengths_invalid", "train_dataset is a list", "pass lengths=[len(row['input_ids'])"):
        balance_trainer(trainer, cap_tokens=200)


class OtherInputs(LlamaForCausalLM):  # type: ignore[no-untyped-call]
    def forward(self, *arguments: Any, **inputs: Any) -> Any:
        if "pixels" not in inputs:
            message = "pixels are needed"
            raise RuntimeError(message)
        return super().forward(*arguments, **inputs)


@pytest.mark.parametrize(
    ("device", "reason"), [("cpu", "RuntimeError: pixels are needed"), ("meta", "parameters without values")]
)
def test_a_model_that_is_not_checked_is_named(tmp_path: Path, device: str, reason: str) -> None:
    trainer = make_trainer(tmp_path)
    with torch.device(device):
        trainer.model = OtherInputs(CONFIG)
    with pytest.warns(UserWarning, match=f"OtherInputs was not checked: .*{reason}.* check_packing") as found:
        balance_trainer(trainer, cap_tokens=200, lengths=LENGTHS)
    assert [one.filename for one in found] == [__file__]


def test_evaluation_keeps_its_collator(tmp_path: Path) -> None:
    """A second call replaces the collator of the first one."""
    trainer = make_trainer(tmp_path)
    trainer.data_collator = own = len
    for pad_to in (1, 64):
        balance_trainer(trainer, cap_tokens=200, lengths=LENGTHS, pad_to=pad_to)
    batches = list(trainer.get_train_dataloader())
    assert all(batch["input_ids"].shape[1] % 64 == 0 for batch in batches)
    assert trainer.data_collator is own
    assert sum(trainer.get_eval_dataloader(ROWS)) == len(ROWS)


def test_data_with_more_tokens_than_their_lengths_are_refused(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    balance_trainer(trainer, cap_tokens=200, lengths=[max(1, size // 4) for size in LENGTHS])
    with refused("micro_batch_invalid", "cap_tokens is 200", "longer than their lengths"):
        list(trainer.get_train_dataloader())


def test_lengths_are_compared_with_the_data_set(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    balance_trainer(trainer, cap_tokens=200, lengths=LENGTHS[:50])
    with refused("lengths_invalid", "60 sequences", "lengths 50"):
        trainer.get_train_dataloader()


def test_masks_reach_the_collator(tmp_path: Path) -> None:
    rows = [row | {"loss_mask": [0, *[1] * (len(row["input_ids"]) - 1)]} for row in ROWS]
    rows[7]["loss_mask"] = [0] * len(rows[7]["input_ids"])
    trainer = make_trainer(tmp_path, rows)
    balance_trainer(trainer, cap_tokens=200, lengths=LENGTHS)
    labels = [batch["labels"] for batch in trainer.get_train_dataloader()]
    assert sum(int((one != -100).sum()) for one in labels) == LENGTHS.sum() - 60 - (LENGTHS[7] - 1)


def test_the_collator_has_the_limit_and_paddings_of_the_sampler(tmp_path: Path) -> None:
    rows = [*ROWS, {"input_ids": [1] * 500}]
    trainer = make_trainer(tmp_path, rows)
    options: dict[str, Any] = {"too_long": "truncate", "pad_to": 64, "pad_sequence_to": 16}
    balance_trainer(trainer, cap_tokens=200, lengths=[*LENGTHS, 500], **options)
    batches = list(trainer.get_train_dataloader())
    assert max(batch["input_ids"].shape[1] for batch in batches) == 192
    assert all((batch["cu_seq_lens_q"] % 16 == 0).all() for batch in batches)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"pad_to": 0}, "pad_to is 0"),
        ({"pad_to": 1.5}, "pad_to is 1.5"),
        ({"pad_sequence_to": 256}, "cap_tokens is 200"),
    ],
)
def test_paddings_are_checked_at_once(tmp_path: Path, options: dict[str, Any], part: str) -> None:
    with refused("argument_invalid", part):
        balance_trainer(make_trainer(tmp_path), cap_tokens=200, lengths=LENGTHS, **options)


@pytest.mark.parametrize("changed", [{}, {"steps_per_epoch": 20}, {"seed": 7}, {"cap_tokens": 300}])
def test_a_checkpoint_of_other_steps_is_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    first = make_trainer(tmp_path, save_strategy="steps", save_steps=2)
    balance_trainer(first, cap_tokens=200, lengths=LENGTHS)
    first.train()
    second = make_trainer(tmp_path)
    options: dict[str, Any] = {"cap_tokens": 200, "lengths": LENGTHS} | changed
    balance_trainer(second, **options)
    assert sum(isinstance(one, BalancedEpochs) for one in second.callback_handler.callbacks) == 1
    path = str(tmp_path / "checkpoint-2")
    if not changed:
        second.train(resume_from_checkpoint=path)
        assert second.state.global_step == 4
        return
    part = "ranks x micro_batches = 2, cap_tokens = 200" if "cap_tokens" in changed else next(iter(changed))
    with refused("checkpoint_mismatch", part):
        second.train(resume_from_checkpoint=path)
