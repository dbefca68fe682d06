"""The kernels of a training step of Hydraulis by kind of work, compared with the device's peak.

An analytic cost profile multiplies the time at peak of each kind of work (`docs/cost-model.md`). Sums of
kernels' times show these multiples on a device; they leave out the time that it waits.
"""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from benches.gpu.training_step import StepSetting, ways
from torch.profiler import ProfilerActivity, profile

from hydraulis.model.flops import training_flops

# By the name of a kernel, or of an operation on the CPU; the first that matches. Attention has "cutlass" too.
KINDS = {
    "attention": re.compile(r"flash|attention", re.IGNORECASE),
    "matrices": re.compile(r"nvjet|gemm|cutlass|aten::(mm|addmm|bmm)$", re.IGNORECASE),
    "optimizer": re.compile(r"FusedOptimizer|fused_adam", re.IGNORECASE),
    "other": re.compile(""),
}
# Attention's operations for each unit of query width and squared token: 2 forward and 5 backward (Dao 2023).
ATTENTION_OPERATIONS = 7.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRow:
    """One kind of work.

    Attributes:
        kind: Name of the kind.
        kernels: Number of its kernels.
        ms: Sum of their times.
        times_peak: Multiple of the time at peak; None if its operations or the peak are not known.
    """

    kind: str
    kernels: int
    ms: float
    times_peak: float | None


def measure_kinds(setting: StepSetting, peak_tflops: float | None) -> list[KindRow]:
    """Sum the kernels of the third step, whose memory and kernels exist."""
    way = [way for name, way in ways(setting).items() if name.startswith("hydraulis")][-1]
    with way(setting) as step:
        for _ in range(2):
            step()
        with profile(activities=[_activity(setting.device)]) as traced:
            step()
            _wait(setting.device)
    times, numbers = dict.fromkeys(KINDS, 0.0), Counter[str]()
    for event in traced.events():
        ms = _milliseconds(event, setting.device)
        if ms == 0.0:  # A call of the runtime.
            continue
        kind = next(kind for kind, pattern in KINDS.items() if pattern.search(event.name))
        times[kind] += ms
        numbers[kind] += 1
    at_peak = _at_peak(setting, peak_tflops)
    return [
        KindRow(
            kind=kind,
            kernels=numbers[kind],
            ms=times[kind],
            times_peak=times[kind] / at_peak[kind] if kind in at_peak else None,
        )
        for kind in KINDS
    ]


def _at_peak(setting: StepSetting, peak_tflops: float | None) -> dict[str, float]:
    """Give the milliseconds at peak of the kinds whose operations are known."""
    if peak_tflops is None:
        return {}
    matrices = training_flops(setting.model, sum(setting.lengths), 0)
    # MFU counts 2 operations forward and 4 backward.
    attention = training_flops(setting.model, 0, setting.squares) * ATTENTION_OPERATIONS / 6.0
    return {"matrices": matrices / peak_tflops / 1e9, "attention": attention / peak_tflops / 1e9}


def _activity(device: torch.device) -> ProfilerActivity:
    return ProfilerActivity.CUDA if device.type == "cuda" else ProfilerActivity.CPU


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _milliseconds(event: Any, device: torch.device) -> float:
    """Give a kernel's time, or on the CPU the time of an operation without those that it calls."""
    return 1e-3 * float(event.device_time if device.type == "cuda" else event.self_cpu_time_total)
