"""The memory of a device from fake counters of driver and allocator; the error of a device that is full."""

from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from config.run_file import MINIMAL, write
from helpers import refused
from hydraulis import Cluster, Scheme
from hydraulis.config.run import RunConfig, load
from hydraulis.errors import HydraulisError
from hydraulis.parallel.communicators import Channels, communicator_bytes
from hydraulis.profile import memory as profile_memory
from hydraulis.profile.activations import allocated_bytes
from hydraulis.profile.bench import SchemeBench
from hydraulis.runtime import worker as worker_module
from hydraulis.runtime.memory import device_memory
from hydraulis.runtime.memory.device_memory import (
    DeviceMemory,
    FragmentationCheck,
    fragmentation_note,
    with_device_memory,
)
from hydraulis.runtime.memory.iteration_memory import IterationMemory
from hydraulis.runtime.memory.out_of_memory import naming_full_device, naming_out_of_memory, requested_bytes
from hydraulis.runtime.worker import Worker
from hydraulis.text.values import MIB
from ranks import run_ranks
from runtime.memory.device_memory_workers import least_memory

CUDA = torch.device("cuda", 0)


class FakeCuda:
    """Counters of a device in MiB: of the driver, and of torch's allocator."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.total, self.free = 80_000, 7_000
        self.reserved, self.allocated = 70_000, 66_000
        self.peak_reserved, self.peak_allocated = 70_000, 69_000
        counters = {
            "memory_reserved": "reserved",
            "memory_allocated": "allocated",
            "max_memory_reserved": "peak_reserved",
            "max_memory_allocated": "peak_allocated",
        }
        for function, name in counters.items():
            monkeypatch.setattr(torch.cuda, function, lambda _, name=name: getattr(self, name) * MIB)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (self.free * MIB, self.total * MIB))
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self.reset)

    def reset(self, _device: torch.device) -> None:
        self.peak_reserved, self.peak_allocated = self.reserved, self.allocated

    def use(self, mib: int) -> None:
        """Allocate, or free, and follow the peak."""
        self.allocated += mib
        self.peak_allocated = max(self.peak_allocated, self.allocated)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


def tensors(mib: int) -> list[Tensor]:
    return [torch.empty(mib * MIB, dtype=torch.uint8, device="meta")]


@pytest.mark.usefixtures("cuda")
def test_what_the_allocator_has_not_reserved_is_context_and_communicators() -> None:
    memory = DeviceMemory.read(CUDA)
    # 80,000 - 7,000 - 70,000.
    assert memory.outside == 3_000 * MIB
    assert memory.fragmentation == 1_000 * MIB
    # 3 % above 3,000, the workspaces of 66,000 - 65,900, and the fragmentation.
    assert memory.beyond(tensors(65_900)) == (3_090 + 100 + 1_000) * MIB
    assert memory._replace(outside=0).beyond(tensors(66_100)) == 1_000 * MIB


TEMPORARY_BYTES = 3 * MIB


def worker_of(*schemes: str) -> Any:
    cluster, channels = Cluster(gpus=8, gpus_per_node=8), Channels(8, 16)
    parsed = [Scheme(scheme) for scheme in schemes]
    return SimpleNamespace(
        device=CUDA,
        persistent=tensors(65_900),
        optimizer_shard=SimpleNamespace(optimizer=SimpleNamespace(temporary_bytes=TEMPORARY_BYTES)),
        communicator_bytes=communicator_bytes(parsed, cluster, channels),
        later_communicator_bytes=communicator_bytes(parsed, cluster, channels, later=True),
    )


@pytest.mark.usefixtures("cuda")
def test_the_planner_reserves_what_was_measured_and_what_is_connected_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gathered: list[int] = []

    def another_rank_has_more(most: Tensor, op: object) -> None:
        assert op == dist.ReduceOp.MAX
        gathered.append(int(most))
        most += 7

    monkeypatch.setattr(dist, "all_reduce", another_rank_has_more)
    worker = worker_of("<1>", "<pp2>", "<tp2>")
    # Two neighbours of a stage, which no measurement connects; its only tensor group is connected.
    assert worker.later_communicator_bytes == 2 * 12 * 16 * MIB
    measured = 4_190 * MIB + TEMPORARY_BYTES
    assert profile_memory._beyond_tensors(worker) == measured + 7 + 2 * 12 * 16 * MIB
    assert gathered == [measured]
    worker.device = torch.device("cpu")
    assert profile_memory._beyond_tensors(worker) == 0


@pytest.mark.usefixtures("cuda")
def test_ranks_of_one_device_plan_their_communicators_by_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: None)
    for module in (profile_memory, device_memory):
        monkeypatch.setattr(module, "ranks_per_device", lambda _: 2)
    worker = worker_of("<1>", "<pp2>")
    expected = np.ceil(1.03 * worker.communicator_bytes) + 1_100 * MIB + TEMPORARY_BYTES
    assert profile_memory._beyond_tensors(worker) == expected


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize(("ranks", "outside"), [(1, 3_000), (2, 700)])
def test_the_measured_peak_has_the_memory_outside_the_allocator_as_the_planned_one_does(
    ranks: int, outside: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[Any] = []
    monkeypatch.setattr(device_memory, "ranks_per_device", lambda _: ranks)
    monkeypatch.setattr(worker_module, "gather_reports", lambda _, report: reports.append(report))
    monkeypatch.setattr(worker_module, "combine_reports", lambda *_, **__: None)
    times = SimpleNamespace(computed_ms=1.0, crossing_ms=0.0, transferred_ms=0.0)
    fake: Any = SimpleNamespace(
        device=CUDA,
        persistent=[],
        communicator_bytes=700 * MIB,
        timers=SimpleNamespace(read=lambda: times),
        memory=IterationMemory(CUDA),
        redistribution=SimpleNamespace(crossing=(0, 0)),
        _groups_ms=0.0,
    )
    plan: Any = None
    Worker.measure(fake, plan)
    fake.device = torch.device("cpu")
    fake.memory = IterationMemory(fake.device)
    Worker.measure(fake, plan)
    peak = int(torch.cuda.max_memory_allocated(CUDA))
    assert [report.peak_bytes for report in reports] == [peak + outside * MIB, None]


class FakeStage:
    """A stage whose forward saves 3 MiB and needs 10 more for a moment, and whose backward needs 20 more."""

    device, is_first, is_last = CUDA, False, True
    module = SimpleNamespace(layers=[None])
    copies = None

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda

    def forward(self, _input_tH: Tensor | None, _batch: Any, _denominator: int) -> Tensor:
        cuda = self.cuda
        cuda.use(13)
        cuda.use(-10)

        class Backward(torch.autograd.Function):
            @staticmethod
            def forward(_context: Any, value: Tensor) -> Tensor:
                return value.clone()

            @staticmethod
            def backward(_context: Any, gradient: Tensor) -> Tensor:
                cuda.use(20)
                cuda.use(-23)
                return gradient

        result: Tensor = Backward.apply(torch.zeros((), requires_grad=True))  # type: ignore[no-untyped-call]
        return result


def test_activations_are_the_allocators_peak_over_forward_and_backward(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, batch = FakeStage(cuda), SimpleNamespace(num_targets=1)
    before = cuda.allocated
    given = torch.zeros(MIB, dtype=torch.uint8)
    # The input of 1 MiB was allocated before.
    assert allocated_bytes(stage, given, batch) == (4 * MIB, 24 * MIB)  # type: ignore[arg-type]
    assert cuda.allocated == before
    bench = SchemeBench.__new__(SchemeBench)
    bench._stage = bench._recomputed = bench._uncheckpointed = stage  # type: ignore[assignment]
    monkeypatch.setattr(SchemeBench, "_micro_batch", lambda *_: batch)
    monkeypatch.setattr(SchemeBench, "_input", lambda *_: given)
    # Two earlier micro-batches in flight have saved theirs.
    assert bench._peak_bytes(3, [1]) == ((2 * 4 + 24) * MIB, 0)


@pytest.mark.parametrize(("used", "is_fragmented"), [(66_500, False), (66_499, True)])
def test_more_than_a_twentieth_that_no_step_used_is_fragmentation(
    cuda: FakeCuda, *, used: int, is_fragmented: bool
) -> None:
    cuda.reserved = 40_000
    check = FragmentationCheck(CUDA, IterationMemory(CUDA))
    cuda.reserved, cuda.peak_allocated = 70_000, used
    assert check.is_fragmented() is is_fragmented


def test_memory_that_the_allocator_keeps_from_before_is_no_fragmentation(cuda: FakeCuda) -> None:
    iterations = IterationMemory(CUDA)
    check = FragmentationCheck(CUDA, iterations)
    # Reserved before the first step, which needs half of it.
    cuda.peak_allocated = 35_000
    assert not check.is_fragmented()
    # A large step, then a small one.
    cuda.reserved = cuda.peak_reserved = 78_000
    cuda.peak_allocated = 76_000
    assert not check.is_fragmented()
    cuda.allocated = 30_000
    iterations.start()
    assert cuda.peak_allocated == 30_000
    assert not check.is_fragmented()
    # An evaluation, of which the step before it knew nothing.
    cuda.reserved = cuda.peak_reserved = 90_000
    cuda.peak_allocated = 88_000
    iterations.start()
    assert not check.is_fragmented()


def test_the_warning_of_fragmentation_counts_the_ranks() -> None:
    assert "on 3 ranks" in fragmentation_note(3)
    assert "5%" in fragmentation_note(1)


def out_of_memory(text: str, kind: type[Exception] = torch.OutOfMemoryError) -> str:
    def fail() -> None:
        with naming_out_of_memory(worker_of("<1>"), 3, lambda: 68_000 * MIB):
            raise kind(text)

    with pytest.raises(HydraulisError) as caught:
        fail()
    assert caught.value.code == "out_of_device_memory"
    assert not caught.value.is_everywhere
    return str(caught.value)


@pytest.mark.usefixtures("cuda")
def test_a_full_device_is_one_error_with_the_bytes_and_the_remedy() -> None:
    message = out_of_memory("CUDA out of memory. Tried to allocate 9.50 GiB. GPU 0 has a total capacity")
    for part in (
        "rank 3 ran out",
        "asked for 9,728 MiB",
        "68,000 MiB were planned",
        "hold 66,000 MiB, of which 65,900 MiB resident",
        "70,000 MiB of 80,000 MiB",
        "take 3,000 MiB, of which 960 MiB planned",
        # The request itself: 3,000 + 70,000 + 9,728 - 80,000 are fewer.
        "planner.memory_mib by at least 9,728 and",
    ):
        assert part in message


@pytest.mark.usefixtures("cuda")
def test_a_connection_without_room_on_the_device_is_the_same_error() -> None:
    text = "ncclUnhandledCudaError: Call failed.\nLast error:\nCuda failure 2 'out of memory'"
    assert "asked for memory: 68,000 MiB were planned" in out_of_memory(text, dist.DistBackendError)
    lost = dist.DistBackendError("NCCL error: remote process exited")
    with pytest.raises(dist.DistBackendError) as caught, naming_full_device(CUDA, 3):
        raise lost
    assert caught.value is lost


class KernelError(Exception):
    """As the CuTe DSL raises it: no RuntimeError."""


# As torch 2.13, Triton 3 and the CuTe DSL say it.
OUTSIDE = [
    (
        "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in https://docs.nvidia.com",
        torch.AcceleratorError,
    ),
    ("CUDA driver error: out of memory", RuntimeError),
    ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", RuntimeError),
    ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", RuntimeError),
    ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", RuntimeError),
    ("Triton Error [CUDA]: out of memory", RuntimeError),
    ("DSLCudaRuntimeError: CUDA_ERROR_OUT_OF_MEMORY (error code: 2)", KernelError),
]


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize(("text", "kind"), OUTSIDE)
def test_memory_that_the_allocator_does_not_give_is_the_same_error_without_a_number(
    text: str, kind: type[Exception]
) -> None:
    message = out_of_memory(text, kind)
    assert "asked for memory: 68,000 MiB were planned" in message
    # The size of the request is not known.
    assert "Lower planner.memory_mib and measure" in message
    with refused("out_of_device_memory", "asked for memory for parameters"), naming_full_device(CUDA, 3):
        raise kind(text)


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
        RuntimeError("Triton Error [CUDA]: device kernel image is invalid"),
        # Another rank's device.
        HydraulisError("rank 1 failed: RuntimeError: CUDA error: out of memory", code="lost_rank"),
        dist.DistBackendError("NCCL error: rank 1 said: CUDA error: out of memory"),
    ],
)
def test_another_failure_of_a_device_or_of_another_ranks_device_stays_as_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, naming_full_device(CUDA, 3):
        raise error
    assert caught.value is error


def test_the_memory_to_give_up_is_that_which_the_device_lacks(cuda: FakeCuda) -> None:
    # 73,000 + 7,000 - 80,000 lacks nothing: the request itself.
    assert "by at least 5,120 and" in out_of_memory("Tried to allocate 5.00 GiB.")
    cuda.reserved, cuda.free, cuda.total = 70_000, 2_000, 75_000
    # 3,000 + 70,000 + 5,120 - 75,000.
    assert "by at least 5,120 and" in out_of_memory("Tried to allocate 5.00 GiB.")
    cuda.free, cuda.total = -2_000, 73_000
    # 5,000 + 70,000 + 5,120 - 73,000.
    assert "by at least 7,120 and" in out_of_memory("Tried to allocate 5.00 GiB.")


@pytest.mark.usefixtures("cuda")
def test_a_device_that_is_full_before_the_first_plan_needs_more_ranks_or_narrower_schemes() -> None:
    message = "Tried to allocate 9.50 GiB."
    with pytest.raises(HydraulisError) as caught, naming_full_device(CUDA, 3):
        raise torch.OutOfMemoryError(message)
    assert caught.value.code == "out_of_device_memory"
    assert not caught.value.is_everywhere
    for part in (
        "rank 3 ran out",
        "asked for 9,728 MiB for parameters",
        "hold 66,000 MiB",
        "70,000 MiB of 80,000 MiB",
        "take 3,000 MiB",
        "planner.strategies",
    ):
        assert part in str(caught.value)
    # No number of tokens would fit.
    assert "memory_mib" not in str(caught.value)


def test_other_errors_stay_as_they_are() -> None:
    for naming in (naming_out_of_memory(worker_of("<1>"), 0), naming_full_device(CUDA, 0)):
        with pytest.raises(MemoryError), naming:
            raise MemoryError


@pytest.mark.parametrize(
    ("text", "size"),
    [("Tried to allocate 512 bytes", 512), ("Tried to allocate 2.00 KiB", 2048), ("no size", 0)],
)
def test_the_size_of_the_request_is_read_from_torchs_text(text: str, size: int) -> None:
    assert requested_bytes(text) == size


def config_of(*overrides: str) -> RunConfig:
    text = MINIMAL.replace("memory_mib = 512\n", "")
    with TemporaryDirectory() as folder:
        return load(write(Path(folder), text), overrides)


@pytest.mark.parametrize(("sharing", "mib"), [(1, 80_896), (2, 40_448)])
def test_the_memory_of_a_rank_is_that_of_its_device_unless_it_is_set(
    monkeypatch: pytest.MonkeyPatch, sharing: int, mib: int
) -> None:
    properties = SimpleNamespace(total_memory=81_100 * MIB)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(device_memory, "ranks_per_device", lambda _: sharing)
    config = with_device_memory(config_of("train.device=cuda"), CUDA)
    assert config.planner.memory_mib == mib
    assert config.planner.memory_bytes == mib * MIB
    stated = with_device_memory(config_of("train.device=cuda", "planner.memory_mib=512"), CUDA)
    assert stated.planner.memory_mib == 512


def test_ranks_on_different_devices_plan_with_the_least_memory_and_keep_a_stated_one() -> None:
    config = config_of("planner.memory_mib=512")
    assert run_ranks(3, least_memory, config, [80_896, 40_448, None]) == [40_448, 40_448, 512]
    assert run_ranks(2, least_memory, config, [None, None]) == [512, 512]


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_other_ranks_need_a_stated_memory(device: str) -> None:
    with refused("config_missing_key", "memory_mib", f"train.device = '{device}'", "name a preset"):
        config_of(f"train.device={device}")
    # A saved profile has its own.
    config = config_of(f"train.device={device}", "planner.profile=p.json")
    assert with_device_memory(config, torch.device("cpu")).planner.memory_mib is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_request_beyond_the_device_is_the_named_error() -> None:
    request = 2 * DeviceMemory.read(CUDA).total
    with pytest.raises(HydraulisError) as caught, naming_full_device(CUDA, 0):
        torch.empty(request, dtype=torch.uint8, device=CUDA)
    assert caught.value.code == "out_of_device_memory"
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)
    # The allocator states the size in GiB with two decimals.
    assert requested_bytes(str(caught.value.__cause__)) == pytest.approx(request, rel=1e-2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_device_has_a_context_outside_the_allocator() -> None:
    tensor = torch.empty(64 * MIB, dtype=torch.uint8, device=CUDA)
    memory = DeviceMemory.read(CUDA)
    assert memory.allocated >= tensor.nbytes
    assert memory.reserved >= memory.allocated
    assert 0 < memory.outside < memory.total
    assert memory.beyond([tensor]) >= memory.outside
