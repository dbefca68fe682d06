"""Measured memory on CUDA with a fake device: token caps follow from micro-batches near them."""

from typing import Any

import pytest
import torch

from devices import one_rank
from hydraulis import Scheme
from hydraulis._core import Position
from hydraulis.profile import measure
from hydraulis.profile.bench import SavedBytes
from hydraulis.profile.measure import MeasurementLimits, _measured_memory, _untimed, _workload
from hydraulis.profile.memory import MEMORY_TOKENS, model_memory, sample_tokens
from runtime.tiny import make_worker

SCHEME = Scheme("<1>")
# Bytes per token, and those of a chunk's token; a chunk has at most this many tokens.
PER_TOKEN, OF_CHUNK, CHUNK = 1000, 500, 2048
ROOM = 40_000_000


def peak(tokens: int) -> int:
    return PER_TOKEN * tokens + OF_CHUNK * min(tokens, CHUNK)


class FakeBench:
    """A bench whose peak is linear from a chunk's size on."""

    scheme = SCHEME
    position = Position.all(SCHEME)[0]

    def __init__(self) -> None:
        self.asked: list[int] = []

    def saved_bytes(self, tokens: int) -> SavedBytes:
        self.asked.append(tokens)
        per_token = (peak(2 * tokens) - peak(tokens)) / tokens
        return SavedBytes(per_token, peak(tokens) - per_token * tokens)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_caps_on_cuda_follow_from_sizes_near_them(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench: Any = FakeBench()
    limits = MeasurementLimits(
        context="ring", memory_bytes=ROOM, longest=64, micro_batch_tokens=1 << 20, seconds=1.0
    )
    with one_rank("cpu"):
        worker = make_worker([f"1x{SCHEME}"])
        workload = _workload(worker, "ring")
        # The worker's own bytes, which no size changes.
        own = model_memory(worker, ROOM)
        monkeypatch.setattr(measure, "model_memory", lambda *_: own)
        monkeypatch.setattr(worker, "device", torch.device(device))
        profile = _untimed(*_measured_memory(worker, [bench], limits, workload), workload)
        cap = profile.cap_tokens(SCHEME, worker.cluster)
        buffers = worker.local_shard.parameter.nbytes + worker.local_shard.gradient.nbytes
    room = ROOM - own.reserved_bytes - own.optimizer_bytes - buffers
    best = max(tokens for tokens in range(0, 1 << 16, 64) if peak(tokens) <= room)
    if device == "cpu":
        # Its bytes are linear, so it asks once.
        assert bench.asked == [MEMORY_TOKENS]
        assert cap < 0.75 * best
    else:
        assert bench.asked[0] == MEMORY_TOKENS
        assert bench.asked[1] > CHUNK
        assert cap == best


def test_the_sizes_are_at_least_those_of_the_first_measurement_and_fit_a_batch() -> None:
    assert sample_tokens(100, 10_000) == MEMORY_TOKENS
    assert sample_tokens(40_000, 100_000) == 10_000
    assert sample_tokens(40_000, 12_000) == 3_000
