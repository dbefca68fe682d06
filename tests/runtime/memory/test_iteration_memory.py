"""Memory of a rank: counted on the CPU, read from the allocator on CUDA."""

import sys
from itertools import pairwise

import pytest
import torch

from hydraulis import Scheme
from hydraulis._core import Position
from hydraulis.runtime.memory.iteration_memory import IterationMemory, tokens_in_flight
from hydraulis.runtime.ranks.device import CPU
from runtime.tiny import plan_for


def test_on_the_cpu_persistent_tensors_are_counted() -> None:
    memory = IterationMemory(CPU)
    memory.start()
    lasting = [torch.zeros(3), torch.zeros(5, dtype=torch.bfloat16), torch.zeros(0)]
    assert memory.most_bytes(lasting) == 3 * 4 + 5 * 2


def test_on_cuda_the_peak_comes_from_the_allocator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peak = {0: 700, 1: 900}
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: peak.update({device.index: 0}))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: peak[device.index])
    memory = IterationMemory(torch.device("cuda", 1))
    assert memory.most_bytes([torch.zeros(3)]) == 900
    memory.start()
    assert memory.most_bytes([]) == 0
    assert peak[0] == 700


FIRST, LAST = Position.all(Scheme("<pp2>"))


def test_saved_bytes_are_counted_at_each_new_peak_of_tokens() -> None:
    memory = IterationMemory(CPU)
    counted = []
    for position, tokens in [(FIRST, 5), (FIRST, 5), (LAST, 3), (FIRST, 9), (FIRST, 7), (None, 0), (LAST, 4)]:
        memory.start((), position, tokens)
        counted.append(memory.saved is not None)
        assert (memory.peak_bytes([torch.zeros(3)]) is None) is (memory.saved is None)
    assert counted == [True, False, True, True, False, False, True]


def test_a_micro_batch_is_in_flight_from_its_forward_to_its_backward() -> None:
    memory = IterationMemory(CPU)
    parameters = torch.ones(50)
    memory.start([parameters], FIRST, 10)
    saved = memory.saved
    assert saved is not None
    alive = []
    for micro_batch, size in enumerate((4, 6, 1)):
        received = torch.zeros(2, dtype=torch.float64)
        with saved.forward(micro_batch, received if micro_batch else None):
            made = torch.ones(size) + torch.ones(size)
            half = made[: size // 2]
            weight = parameters.view(5, 10).T
            made.exp()
        # One storage, whatever shares it; what was made on the way is gone.
        alive.append((made, half, weight, received))
        if micro_batch == 1:
            # The first two together, the second with what it was sent.
            assert saved.most_bytes == 4 * (4 + 6) + 16
            saved.release(0)
    # The second and the third, both of which were sent something.
    assert saved.most_bytes == 4 * (6 + 1) + 2 * 16
    assert memory.peak_bytes([torch.zeros(3)]) == saved.most_bytes + 12


def test_without_the_functions_of_torch_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hydraulis.runtime.memory.saved_activations", None)
    memory = IterationMemory(CPU)
    memory.start([torch.ones(4)], FIRST, 10)
    assert memory.saved is None
    assert memory.peak_bytes([torch.ones(4)]) is None


def test_a_stage_has_a_micro_batch_in_flight_for_each_stage_from_it_on() -> None:
    plan = plan_for(4, "1x<pp2>+2x<1>", [30, 28, 25, 20, 9, 7, 7, 3])
    replica = next(replica for replica in plan.replicas if str(replica.scheme) == "<pp2>")
    tokens = [int(plan.lengths[ids].sum()) for ids in replica.micro_batches]
    assert len(tokens) > 1
    first, last = replica.ranks
    assert tokens_in_flight(plan, first) == max(one + other for one, other in pairwise(tokens))
    assert tokens_in_flight(plan, last) == max(tokens)
    idle = plan_for(4, "4x<1>", [5])
    assert sorted(tokens_in_flight(idle, rank) for rank in range(4)) == [0, 0, 0, 5]
