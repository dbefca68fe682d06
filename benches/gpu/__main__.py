"""Attention kernels, training steps, predictions and pieces of work on a device.

    python -m benches.gpu [--only PART ...] [--device cuda|cpu] [--tiny] [--json FILE] [--record FOLDER]

attention: every kernel that takes the heads, on packed micro-batches of as many tokens in sequences of equal
lengths, of long-tailed ones, and in a single one. step-1b, step-8b: a decoder in bfloat16 on micro-batches of
long-tailed lengths, with the optimizer's step, by Hydraulis, by transformers and in torchtitan's form; MFU
counts attention by the sum of squared lengths. profile: `hydraulis profile` and a training run, planned and
measured. kinds-1b, kinds-8b: the kernels of such a step of Hydraulis by kind of work. rows: pieces of work in
several ways. collectives: those of a tensor group, between this machine's
devices, or two ranks on the one device.

A part that fails is noted, and the others are measured. `--tiny` shrinks all of it, to see that it runs.
"""

import argparse
import dataclasses
import os
import shlex
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benches.gpu import record
from benches.gpu.attention import AttentionSetting, measure_attention
from benches.gpu.collectives import measure_collectives
from benches.gpu.kinds import measure_kinds
from benches.gpu.machine import describe
from benches.gpu.prediction import PredictionSetting, measure_prediction, memory_for_plans
from benches.gpu.rows import measure_pieces
from benches.gpu.shapes import BILLION, EIGHT_BILLION, TINY
from benches.gpu.training_step import StepSetting, measure_steps
from benches.gpu.workload import Clock, described_rank, long_tail, peak_tflops

from hydraulis.config.model import ModelConfig
from hydraulis.runtime.ranks.device import choose_device

RECORDS = Path(__file__).parents[1] / "record"


class Measurement:
    """The parts of a measurement, with the settings of the command line.

    Args:
        arguments: The command line.
        device: Device to measure on.
    """

    def __init__(self, arguments: argparse.Namespace, device: torch.device) -> None:
        self._tiny, self._arguments, self._device = arguments.tiny, arguments, device
        self._dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self._tokens = 256 if self._tiny else arguments.tokens
        self._clock = Clock(device, 1 if self._tiny else arguments.repetitions)

    def attention(self) -> dict[str, Any]:
        """Time the attention kernels."""
        setting = AttentionSetting(
            device=self._device,
            dtype=self._dtype,
            heads=4 if self._tiny else 32,
            key_value_heads=2 if self._tiny else 8,
            head_dim=16 if self._tiny else 128,
            tokens=self._tokens,
        )
        return {"attention": list(map(dataclasses.asdict, measure_attention(setting, self._clock)))}

    def steps(self, model: ModelConfig) -> dict[str, Any]:
        """Time a step by each way."""
        peak = peak_tflops(self._device)
        rows = []
        for row in measure_steps(self._step(model), self._clock, peak):
            rows.append(dataclasses.asdict(row))
            # A limit may end the process before the table.
            sys.stdout.write(f"  {row.way}: {row.refusal or f'{row.step_ms:.1f} ms'}\n")
            sys.stdout.flush()
        return {"steps": rows, "peak_tflops": peak}

    def kinds(self, model: ModelConfig) -> dict[str, Any]:
        """Sum the kernels of a step by kind of work."""
        rows = measure_kinds(self._step(model), peak_tflops(self._device))
        return {"kinds": list(map(dataclasses.asdict, rows))}

    def _step(self, model: ModelConfig) -> StepSetting:
        arguments = self._arguments
        seeds = range(arguments.micro_batches)
        return StepSetting(
            device=self._device,
            dtype=self._dtype,
            model=TINY if self._tiny else model,
            micro_batches=[long_tail(self._tokens, self._tokens // 2, seed) for seed in seeds],
            checkpointing=arguments.checkpointing,
        )

    def prediction(self) -> dict[str, Any]:
        """Measure a profile, and compare it with a run."""
        setting = PredictionSetting(
            device=self._device,
            model=TINY if self._tiny else BILLION,
            dtype=str(self._dtype).removeprefix("torch."),
            tokens=2048 if self._tiny else 8 * self._tokens,
            memory_mib=memory_for_plans(self._device),
            profile_seconds=1.0 if self._tiny else 30.0,
            peak_tflops=peak_tflops(self._device),
        )
        return {"profile": measure_prediction(setting)}

    def rows(self) -> dict[str, Any]:
        """Time the pieces."""
        rows = measure_pieces(self._device, self._clock, tiny=self._tiny)
        return {"rows": list(map(dataclasses.asdict, rows))}

    def collectives(self) -> dict[str, Any]:
        """Time the collectives of a tensor group."""
        rows = measure_collectives(self._device, self._clock, tiny=self._tiny)
        return {"collectives": list(map(dataclasses.asdict, rows))}

    def parts(self) -> dict[str, Callable[[], dict[str, Any]]]:
        """Return the parts by name."""
        return {
            "attention": self.attention,
            "step-1b": lambda: self.steps(BILLION),
            "step-8b": lambda: self.steps(EIGHT_BILLION),
            "kinds-1b": lambda: self.kinds(BILLION),
            "kinds-8b": lambda: self.kinds(EIGHT_BILLION),
            "profile": self.prediction,
            "rows": self.rows,
            "collectives": self.collectives,
        }


def main() -> int:
    """Measure, print and write."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="benches.gpu", description=__doc__, formatter_class=layout)
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="parts (default: all)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small enough for a CPU")
    parser.add_argument("--tokens", type=int, default=8192, help="of a micro-batch")
    parser.add_argument("--micro-batches", type=int, default=8, help="of the step")
    parser.add_argument("--checkpointing", choices=("none", "selective", "full"), default="none")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", default="", metavar="FILE", help="write all figures there")
    parser.add_argument(
        "--record", nargs="?", const=RECORDS, type=Path, metavar="FOLDER", help="write a record"
    )
    arguments = parser.parse_args()
    # Asked as a rank asks, which starts CUDA as training does.
    if arguments.device == "cuda" and choose_device("auto").type != "cuda":
        parser.error("there is no CUDA device; --device cpu --tiny shows that the script runs")
    os.environ.update(described_rank(0, 1))
    device = torch.device("cuda", 0) if arguments.device == "cuda" else torch.device("cpu")
    parts = Measurement(arguments, device).parts()
    unknown = sorted(set(arguments.only) - set(parts))
    if unknown:
        parser.error(f"unknown part {', '.join(unknown)}: the parts are {', '.join(parts)}")
    command = shlex.join(["python", "-m", "benches.gpu", *sys.argv[1:]])
    figures: dict[str, Any] = {"machine": describe(device), "command": command, "failed": {}}
    for name in arguments.only or parts:
        sys.stdout.write(f"measuring {name}\n")
        sys.stdout.flush()
        try:
            figures[name] = parts[name]()
        except Exception as error:
            traceback.print_exc()
            figures["failed"][name] = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
        if arguments.json:
            # After each part: a later one may end the process.
            Path(arguments.json).write_text(record.as_json(figures), encoding="utf-8")
    sys.stdout.write(record.plain(figures))
    if arguments.record:
        sys.stdout.write(f"record: {record.write(arguments.record, figures)}\n")
    return 1 if figures["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
