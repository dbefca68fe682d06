"""Attention kernels and a training step on one device, the step beside the same model in transformers.

    python -m benches.gpu [--device cuda|cpu] [--tiny] [--json FILE]

Attention: every kernel that takes the heads, on packed micro-batches of as many tokens in sequences of equal
lengths, of long-tailed ones, and in a single one. Step: a decoder of 1.1 billion parameters in bfloat16, on
micro-batches of long-tailed lengths, with the optimizer's step; MFU counts attention by the sum of squared
lengths. `--tiny` shrinks all of it, to see that it runs. Its figures belong in benches/record with the
device's name.
"""

import argparse
import dataclasses
import json
import os
import socket
import sys
from pathlib import Path

import torch
from benches.gpu.attention import AttentionRow, AttentionSetting, measure_attention
from benches.gpu.training_step import StepRow, StepSetting, measure_steps
from benches.gpu.workload import Clock, long_tail, peak_tflops

from hydraulis.config.model import ModelConfig
from hydraulis.runtime.ranks.device import choose_device, device_name

# TinyLlama's shape.
BILLION = ModelConfig(
    vocab_size=32_000,
    hidden_size=2048,
    intermediate_size=5632,
    num_hidden_layers=22,
    num_attention_heads=32,
    num_key_value_heads=4,
)
TINY = ModelConfig(
    vocab_size=300,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)


def settings(arguments: argparse.Namespace) -> tuple[AttentionSetting, StepSetting]:
    """Give what is measured."""
    device = torch.device("cuda", 0) if arguments.device == "cuda" else torch.device("cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    tokens = 256 if arguments.tiny else arguments.tokens
    attention = AttentionSetting(
        device=device,
        dtype=dtype,
        heads=4 if arguments.tiny else 32,
        key_value_heads=2 if arguments.tiny else 8,
        head_dim=16 if arguments.tiny else 128,
        tokens=tokens,
    )
    step = StepSetting(
        device=device,
        dtype=dtype,
        model=TINY if arguments.tiny else BILLION,
        micro_batches=[long_tail(tokens, tokens // 2, seed=seed) for seed in range(arguments.micro_batches)],
        checkpointing=arguments.checkpointing,
    )
    return attention, step


def attention_table(rows: list[AttentionRow]) -> str:
    """Lay the attention rows out."""
    line = "{:<13} {:>5}  {:<32} {:>10} {:>12} {:>9} {:>9}\n"
    text = line.format("micro-batch", "seqs", "kernel", "forward ms", "both ms", "TFLOP/s", "both")
    for row in rows:
        text += line.format(
            row.micro_batch,
            row.sequences,
            row.kernel,
            *(
                ("-", row.refusal, "", "")
                if row.refusal is not None
                else (
                    f"{row.forward_ms:.3f}",
                    f"{row.both_ms:.3f}",
                    f"{row.forward_tflops:.2f}",
                    f"{row.both_tflops:.2f}",
                )
            ),
        )
    return text


def step_table(rows: list[StepRow]) -> str:
    """Lay the step rows out."""
    line = "{:<36} {:>10} {:>12} {:>9} {:>7} {:>10} {:>11}\n"
    text = line.format("step", "ms", "tokens/s", "TFLOP/s", "MFU", "peak MiB", "first loss")
    for row in rows:
        text += line.format(
            row.way,
            f"{row.step_ms:.1f}",
            f"{row.tokens_per_s:,.0f}",
            f"{row.tflops:.3f}",
            "-" if row.mfu is None else f"{row.mfu:.1%}",
            f"{row.memory_bytes / 2**20:,.0f}",
            f"{row.first_loss:.4f}",
        )
    return text


def alone() -> None:
    """Describe a group of this process alone, as torchrun does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    described = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    os.environ.update(described | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})


def main() -> int:
    """Measure, print and write."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="benches.gpu", description=__doc__, formatter_class=layout)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small enough for a CPU")
    parser.add_argument("--tokens", type=int, default=8192, help="of a micro-batch")
    parser.add_argument("--micro-batches", type=int, default=8, help="of the step")
    parser.add_argument("--checkpointing", choices=("none", "selective", "full"), default="none")
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--json", default="", metavar="FILE", help="write all figures there")
    arguments = parser.parse_args()
    # Asked as a rank asks, which starts CUDA as training does.
    if arguments.device == "cuda" and choose_device("auto").type != "cuda":
        parser.error("there is no CUDA device; --device cpu --tiny shows that the script runs")
    alone()
    attention, step = settings(arguments)
    clock = Clock(attention.device, 1 if arguments.tiny else arguments.repetitions)
    name, peak = device_name(attention.device), peak_tflops(attention.device)
    sys.stdout.write(f"{name}, torch {torch.__version__}, {attention.tokens:,} tokens a micro-batch\n\n")
    attention_rows = measure_attention(attention, clock)
    sys.stdout.write(attention_table(attention_rows) + "\n")
    step_rows = measure_steps(step, clock, peak)
    sys.stdout.write(step_table(step_rows))
    if arguments.json:
        figures = {
            "device": name,
            "torch": torch.__version__,
            "settings": vars(arguments),
            "peak_tflops": peak,
            "attention": [dataclasses.asdict(row) for row in attention_rows],
            "steps": [dataclasses.asdict(row) for row in step_rows],
        }
        Path(arguments.json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
