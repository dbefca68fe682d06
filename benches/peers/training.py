"""Two ranks train a Hugging Face model on long-tail text: padded batches, packed rows, and balanced ones.

    make bench-peers

Every way trains one epoch of the same documents by transformers' `Trainer` under torch's DDP, with a new
model from the same seed. The documents are top-level definitions of Python's standard library as bytes. The
time of a step is the CPU time of its busier rank: the ranks share the cores here, so the clock would show the
other rank too, and a rank that waits takes no CPU time. The packing ways compute attention of each sequence
by itself.

No micro-batch of any way exceeds the cap. So a padded batch has as many sequences as have room at their
greatest length. A step has about the same tokens in every way: the padded ways accumulate more micro-batches.
"""

import argparse
import logging
import os
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from benches.peers.table import print_head, print_row
from datasets import Dataset, disable_progress_bars
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    AttentionInterface,
    DataCollatorWithFlattening,
    LlamaConfig,
    LlamaForCausalLM,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from trl import pack_dataset

from hydraulis.batching.adapters.transformers_trainer import balance_trainer

ATTENTION = "sequence_by_sequence"
HEAD = (
    "way",
    "steps",
    "tokens/s",
    "to padded",
    "busy",
    "most tokens of a micro-batch",
    "micro-batches of a step",
)
# Steps before the first that counts: torch's first calls, and DDP's buckets.
WARM_UP = 2


def attend(
    _: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    **__: object,
) -> tuple[torch.Tensor, None]:
    """Attend within each sequence of a packed row, or under the mask of a padded batch.

    Shapes are [B, N, T, D].
    """
    options: dict[str, Any] = {"scale": scaling, "enable_gqa": True}
    if cu_seq_lens_q is None:
        out = scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None, **options)
        return out.transpose(1, 2), None
    sizes = cu_seq_lens_q.diff().tolist()
    pieces = [
        scaled_dot_product_attention(q, k, v, is_causal=True, **options)
        for q, k, v in zip(*(tensor.split(sizes, dim=2) for tensor in (query, key, value)), strict=True)
    ]
    return torch.cat(pieces, dim=2).transpose(1, 2), None


def read_documents(longest: int, most: int) -> Dataset:
    """Read top-level definitions of the standard library as bytes, cut at `longest`."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    # Two empty lines separate them.
    texts = (text for path in paths for text in path.read_bytes().split(b"\n\n\n"))
    rows = (list(text[:longest]) for text in texts if len(text) > 1)
    return Dataset.from_dict({"input_ids": list(islice(rows, most))})


def make_model(hidden: int) -> LlamaForCausalLM:
    """Make the same model on every rank."""
    torch.manual_seed(0)
    configuration: Any = LlamaConfig
    config = configuration(
        vocab_size=258,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=257,
        attn_implementation=ATTENTION,
    )
    return LlamaForCausalLM(config)


class StepTimes(TrainerCallback):
    """CPU time of each step on this rank.

    Attributes:
        seconds: CPU time of each step.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._start = 0.0

    def on_step_begin(self, *_: object, **__: object) -> None:
        """Start the step's time."""
        self._start = time.process_time()

    def on_step_end(self, *_: object, **__: object) -> None:
        """End the step's time."""
        self.seconds.append(time.process_time() - self._start)


class CountedTrainer(Trainer):
    """A trainer that counts tokens and the longest micro-batch.

    Attributes:
        tokens: Tokens of each micro-batch, without padding.
        computed: Tokens of each micro-batch, with padding.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.tokens: list[int] = []
        self.computed: list[int] = []

    def training_step(self, model: Any, inputs: Any, *others: Any) -> torch.Tensor:
        """Count the micro-batch and train on it."""
        ids = inputs["input_ids"]
        self.tokens.append(int(inputs.pop("attention_mask", torch.ones_like(ids)).sum()))
        self.computed.append(ids.numel())
        loss: torch.Tensor = super().training_step(model, inputs, *others)
        return loss


@dataclass(frozen=True, slots=True)
class Setting:
    """The run that every way trains.

    Attributes:
        data: Documents as tokens.
        cap_tokens: Most tokens of a micro-batch, with padding.
        accumulated: Micro-batches of a rank in a step of the packing ways.
        hidden: Width of the model.
    """

    data: Dataset
    cap_tokens: int
    accumulated: int
    hidden: int

    def padded_options(self) -> dict[str, Any]:
        """Return the sizes of padded batches: at most the cap, and about the tokens of a packed step."""
        lengths = [len(row) for row in self.data["input_ids"]]
        size = max(1, self.cap_tokens // max(lengths))
        tokens = size * sum(lengths) / len(lengths)
        count = max(1, round(self.accumulated * self.cap_tokens / tokens))
        return {"per_device_train_batch_size": size, "gradient_accumulation_steps": count}


Way = Callable[[Setting, Path], CountedTrainer]


def make_trainer(
    setting: Setting, folder: Path, data: Dataset, collate: Any, **options: Any
) -> CountedTrainer:
    """Make the trainer of a way."""
    defaults: dict[str, Any] = {
        "output_dir": str(folder),
        "use_cpu": True,
        "num_train_epochs": 1,
        "gradient_accumulation_steps": setting.accumulated,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "ddp_find_unused_parameters": False,
    }
    arguments = TrainingArguments(**(defaults | options))
    model = make_model(setting.hidden)
    return CountedTrainer(model=model, args=arguments, train_dataset=data, data_collator=collate)


def pad(samples: Sequence[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Collate a padded batch, as `DataCollatorWithPadding` does."""
    rows = [torch.tensor(sample["input_ids"]) for sample in samples]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=257)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def padded(setting: Setting, folder: Path) -> CountedTrainer:
    """Train the framework's default: equal numbers of random sequences, padded to the longest."""
    return make_trainer(setting, folder, setting.data, pad, **setting.padded_options())


def by_length(setting: Setting, folder: Path) -> CountedTrainer:
    """Train the framework's batches of similar lengths, padded."""
    options = setting.padded_options() | {"train_sampling_strategy": "group_by_length"}
    return make_trainer(setting, folder, setting.data, pad, **options)


def packed(setting: Setting, folder: Path) -> CountedTrainer:
    """Train rows of TRL's packing, one a micro-batch, in random order."""
    rows = pack_dataset(setting.data, setting.cap_tokens, "bfd", {"batch_size": len(setting.data)})
    make_flat: Any = DataCollatorWithFlattening
    flatten = make_flat(return_flash_attn_kwargs=True)

    def collate(samples: list[dict[str, list[int]]]) -> Any:
        parts = [
            {"input_ids": part.tolist()}
            for sample in samples
            for part in torch.tensor(sample["input_ids"]).split(list(sample["seq_lengths"]))
        ]
        return flatten(parts)

    options: dict[str, Any] = {"per_device_train_batch_size": 1, "remove_unused_columns": False}
    return make_trainer(setting, folder, rows, collate, **options)


def balanced(setting: Setting, folder: Path) -> CountedTrainer:
    """Train our sampler's micro-batches."""
    trainer = make_trainer(setting, folder, setting.data, None)
    balance_trainer(trainer, cap_tokens=setting.cap_tokens, barrier="step")
    return trainer


WAYS: dict[str, Way] = {
    "transformers, padded": padded,
    "transformers, group_by_length": by_length,
    "TRL packing": packed,
    "hydraulis": balanced,
}


@dataclass(frozen=True, slots=True)
class Figures:
    """One way's epoch.

    Attributes:
        steps: Number of steps.
        rate: Tokens per second of the busier rank's CPU time, without padding.
        busy: Share of the busier rank's time in which a rank computes, on average.
        most: Most tokens computed in a micro-batch.
        accumulated: Micro-batches of a rank in a step.
    """

    steps: int
    rate: float
    busy: float
    most: int
    accumulated: int


def measure(way: Way, setting: Setting, folder: Path) -> Figures:
    """Train one epoch. Collective."""
    trainer = way(setting, folder)
    trainer.remove_callback(PrinterCallback)
    times = StepTimes()
    trainer.add_callback(times)
    trainer.train()
    steps = len(times.seconds)
    accumulated = trainer.args.gradient_accumulation_steps
    own_tokens = sum(trainer.tokens[WARM_UP * accumulated :])
    everything: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everything, (times.seconds[WARM_UP:], own_tokens, max(trainer.computed)))
    seconds = [rank[0] for rank in everything]
    busier = sum(map(max, zip(*seconds, strict=True)))
    return Figures(
        steps=steps,
        rate=sum(rank[1] for rank in everything) / busier,
        busy=sum(map(sum, seconds)) / (len(seconds) * busier),
        most=max(rank[2] for rank in everything),
        accumulated=accumulated,
    )


def run_rank(options: argparse.Namespace) -> None:
    """Train every way on this rank; rank 0 prints."""
    disable_progress_bars()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    AttentionInterface.register(ATTENTION, attend)
    setting = Setting(
        read_documents(options.longest, options.documents), options.cap, options.accumulated, options.hidden
    )
    dist.init_process_group("gloo", timeout=timedelta(minutes=10))
    lead = dist.get_rank() == 0
    found: dict[str, list[Figures]] = {name: [] for name in WAYS}
    # The ways in turn, so that the machine's other work falls on all of them.
    for _ in range(options.epochs):
        for name, way in WAYS.items():
            with tempfile.TemporaryDirectory() as folder:
                found[name].append(measure(way, setting, Path(folder)))
    if lead:
        print_head(HEAD)
        base = max(one.rate for one in found["transformers, padded"])
        for name, epochs in found.items():
            best = max(epochs, key=lambda one: one.rate)
            rate = (f"{best.rate:,.0f}", f"{best.rate / base:.2f}", f"{best.busy:.0%}")
            print_row([name, str(best.steps), *rate, f"{best.most:,}", str(best.accumulated)])
    dist.destroy_process_group()


def start_ranks(arguments: Sequence[str]) -> int:
    """Start two ranks of this script; return the first exit status that is not 0."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "benches.peers.training", *arguments],
            env=os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    return next((status for status in [rank.wait() for rank in ranks] if status), 0)


def main() -> int:
    """Start the ranks, or be one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--longest", type=int, default=4_096, help="tokens at which a document is cut")
    parser.add_argument("--cap", type=int, default=8_192, help="most tokens of a micro-batch, with padding")
    parser.add_argument("--accumulated", type=int, default=2, help="packed micro-batches of a rank in a step")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument(
        "--epochs", type=int, default=2, help="epochs of each way, of which the fastest counts"
    )
    options = parser.parse_args()
    if "RANK" not in os.environ:
        return start_ranks(sys.argv[1:])
    run_rank(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
