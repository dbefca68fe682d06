"""What a rank's tensors take, counted on the CPU and asked of the allocator on CUDA."""

import pytest
import torch

from hydraulis.runtime.device import CPU
from hydraulis.runtime.memory import IterationMemory


def test_on_the_cpu_what_lasts_is_counted() -> None:
    memory = IterationMemory(CPU)
    memory.begin()
    lasting = [torch.zeros(3), torch.zeros(5, dtype=torch.bfloat16), torch.zeros(0)]
    assert memory.most_bytes(lasting) == 3 * 4 + 5 * 2


def test_on_cuda_the_allocator_is_asked_for_its_peak_since_the_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peak = {0: 700, 1: 900}
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: peak.update({device.index: 0}))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: peak[device.index])
    memory = IterationMemory(torch.device("cuda", 1))
    assert memory.most_bytes([torch.zeros(3)]) == 900
    memory.begin()
    assert memory.most_bytes([]) == 0
    assert peak[0] == 700
