"""A cost profile measured on the device, and a training run that compares it with measured times and memory.

Both are the user's own commands, `hydraulis profile` and `hydraulis train`, each in a process of its own.
"""

import dataclasses
import json
import os
import shutil
import statistics
import string
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from benches.gpu.workload import long_tail

from hydraulis.config.model import ModelConfig

_NUM_BATCHES = 9
_MIB = 1 << 20
_MEMORY = Path("/dev/shm")
_CHECKPOINT_BYTES = 32 << 30
_OF_A_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionSetting:
    """The run.

    Attributes:
        device: Device of the one rank.
        model: Shape of the model.
        dtype: Type of the parameters, by its name in a configuration.
        tokens: Tokens of a global batch, and of its longest sequence.
        memory_mib: Memory of the device in MiB, for the plans.
        profile_seconds: Seconds that the profile is measured for.
        peak_tflops: Peak of the device, for MFU; None if it is unknown.
    """

    device: torch.device
    model: ModelConfig
    dtype: str
    tokens: int
    memory_mib: int
    profile_seconds: float
    peak_tflops: float | None = None


def measure_prediction(setting: PredictionSetting) -> dict[str, Any]:
    """Profile and train; return errors of planned times and memory.

    Raises:
        RuntimeError: A command failed; the message has the end of its output.
    """
    with TemporaryDirectory(dir=_folder_in_memory()) as name:
        folder = Path(name)
        (folder / "run.toml").write_text(_configuration(setting, folder), encoding="utf-8")
        (folder / "text.jsonl").write_text(_documents(setting), encoding="utf-8")
        start = time.perf_counter()
        _run(["profile", "run.toml", "--ranks", "1", "--output", "profile.json"], folder)
        profiled = time.perf_counter()
        _run(["train", "run.toml", "--ranks", "1", "--set", "planner.profile=profile.json"], folder)
        lines = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        figures = errors(list(map(json.loads, lines)))
        return figures | {
            "profile_s": profiled - start,
            "train_s": time.perf_counter() - profiled,
            "profile": json.loads((folder / "profile.json").read_text(encoding="utf-8")),
        }


def _folder_in_memory() -> str | None:
    """Return a folder in memory for the checkpoint, which takes a minute to a disk; None without room."""
    is_roomy = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _CHECKPOINT_BYTES
    return str(_MEMORY) if is_roomy else None


def errors(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Compare the plans of a run with its measurements; the first step also makes groups and stages."""
    counted = steps[1:]
    times = [abs(one["planned_ms"] / one["measured_ms"] - 1) for one in counted]
    held = [
        (peak, planned)
        for one in counted
        for planned, peak in zip(one["rank_planned_bytes"], one["rank_peak_bytes"], strict=True)
        if peak is not None
    ]
    # On the CPU later steps may hold no more than the first, which counted alone.
    peak, planned = max(held, default=(steps[0]["rank_peak_bytes"][0], steps[0]["rank_planned_bytes"][0]))
    return {
        "steps": len(counted),
        "median_time_error": statistics.median(times),
        "worst_time_error": max(times),
        "planned_bytes": planned,
        "held_bytes": peak,
        "tokens_per_s": statistics.median(one["tokens_per_s"] for one in counted),
        "mfu": None if counted[0]["mfu"] is None else statistics.median(one["mfu"] for one in counted),
    }


def _configuration(setting: PredictionSetting, folder: Path) -> str:
    fields = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    shape = dataclasses.asdict(setting.model)
    tables: dict[str, dict[str, object]] = {
        "model": {name: shape[name] for name in (*fields, "num_key_value_heads", "rope_theta")},
        "data": {
            "tokens_per_batch": setting.tokens,
            "max_tokens": setting.tokens // 4,
            "too_long": "truncate",
        },
        "train": {"steps": _NUM_BATCHES, "device": setting.device.type, "dtype": setting.dtype},
        "optimizer": {"learning_rate": 1e-4},
        "planner": {
            "strategies": ["1x<1>"],
            "memory_mib": setting.memory_mib,
            "profile_seconds": setting.profile_seconds,
        },
        "output": {"directory": str(folder / "run")},
    }
    if setting.peak_tflops is not None:
        tables["output"]["peak_tflops"] = setting.peak_tflops
    text = "".join(
        f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
        for name, table in tables.items()
    )
    return text + '[[data.sources]]\nfiles = ["text.jsonl"]\n'


def _documents(setting: PredictionSetting) -> str:
    """Draw documents of long-tailed lengths, a byte for a token, enough for all batches."""
    rng = np.random.default_rng(0)
    letters = np.array(list(string.ascii_lowercase))
    lengths = long_tail((_NUM_BATCHES + 1) * setting.tokens, setting.tokens // 4, seed=0)
    return "".join(json.dumps({"text": "".join(rng.choice(letters, length))}) + "\n" for length in lengths)


def _run(words: list[str], folder: Path) -> None:
    # This process describes a group of itself alone; the command starts its own rank.
    environment = {name: value for name, value in os.environ.items() if name not in _OF_A_RANK}
    ended = subprocess.run(
        [sys.executable, "-m", "hydraulis", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    sys.stdout.write(ended.stdout)
    if ended.returncode != 0:
        message = f"hydraulis {words[0]} ended with status {ended.returncode}: {ended.stderr.strip()[-800:]}"
        raise RuntimeError(message)


def memory_for_plans(device: torch.device) -> int:
    """Return nine tenths of the device's free memory in MiB; a small amount for the CPU."""
    if device.type != "cuda":
        return 64
    return int(0.9 * torch.cuda.mem_get_info(device)[0]) // _MIB
