"""What both measurements run on: long-tail lengths, a device's clock, and its peak."""

import socket
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hydraulis.runtime.ranks.streams import StreamEvent

# Of web text cut into documents: most are short, and a few fill the context.
MEDIAN_TOKENS, SIGMA = 500, 1.2

# Dense bfloat16, without sparsity, from NVIDIA's data sheets; by a part of the device's name.
PEAK_TFLOPS = {
    "B200": 2250.0,
    "H200 NVL": 835.0,
    "H200": 989.0,
    "H100 NVL": 835.0,
    "H100 PCIe": 756.0,
    "H100": 989.0,
    "A100": 312.0,
    "L40S": 362.0,
    "4090": 165.0,
}


def long_tail(tokens: int, longest: int, seed: int) -> list[int]:
    """Draw lengths until they fill so many tokens; the last one is cut."""
    rng = np.random.default_rng(seed)
    lengths: list[int] = []
    while sum(lengths) < tokens:
        drawn = int(rng.lognormal(np.log(MEDIAN_TOKENS), SIGMA))
        lengths.append(min(max(2, drawn), longest, tokens - sum(lengths)))
    return lengths


@dataclass(frozen=True, slots=True)
class Clock:
    """Times work on a device.

    Attributes:
        device: Device of the work.
        repetitions: Number of repetitions; the median counts.
    """

    device: torch.device
    repetitions: int

    def median_ms(self, work: Callable[[], object]) -> float:
        """Time some work, after it has run once for what is made on first use."""
        work()
        times = []
        for _ in range(self.repetitions):
            StreamEvent(self.device).synchronize()
            start = time.perf_counter()
            work()
            StreamEvent(self.device).synchronize()
            times.append(1e3 * (time.perf_counter() - start))
        return statistics.median(times)


def attention_flops(lengths: Sequence[int], heads: int, head_dim: int) -> float:
    """Count the operations of one causal forward: two products over half of the pairs of each sequence."""
    return 2.0 * heads * head_dim * sum(length**2 for length in lengths)


def peak_tflops(device: torch.device) -> float | None:
    """Give the device's peak in bfloat16; None for one that is not known."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAK_TFLOPS.items() if part in name), None)


def described_rank(rank: int, ranks: int) -> dict[str, str]:
    """Return torchrun's variables of a rank among the processes of this machine, with a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    counted = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    return {name: str(value) for name, value in counted.items()} | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
