"""Which device a rank takes, what it is refused, and how the process is prepared for it."""

import os
from types import SimpleNamespace

import pytest
import torch

from helpers import refused
from hydraulis.config.kinds import DeviceKind
from hydraulis.runtime.ranks import device as device_module
from hydraulis.runtime.ranks.device import CPU, backend_of, choose_device, device_name, prepare_device

QUEUES, LOADING = "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING"


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Make a node of two devices, on which this is the second of two ranks."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    return monkeypatch


@pytest.fixture
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize(("kind", "name"), [("auto", "cuda:1"), ("cuda", "cuda:1"), ("cpu", "cpu")])
def test_a_rank_takes_the_device_of_its_number_in_the_node(kind: DeviceKind, name: str) -> None:
    assert choose_device(kind) == torch.device(name)


@pytest.mark.usefixtures("no_device")
def test_without_a_device_auto_is_the_cpu() -> None:
    assert choose_device("auto") == choose_device("cpu") == CPU


@pytest.mark.usefixtures("no_device")
def test_a_missing_device_is_refused() -> None:
    with refused("device_missing", "train.device", "cuda"):
        choose_device("cuda")


@pytest.mark.parametrize("kind", ["auto", "cuda"])
def test_more_ranks_than_devices_are_refused_on_every_rank(
    node: pytest.MonkeyPatch, kind: DeviceKind
) -> None:
    node.setenv("LOCAL_WORLD_SIZE", "3")
    for rank in range(3):
        node.setenv("LOCAL_RANK", str(rank))
        with refused("device_missing", "3 ranks", "2 CUDA devices", "start 2 ranks"):
            choose_device(kind)
    node.setenv("LOCAL_RANK", "2")
    assert choose_device("cpu") == CPU


# As Slurm's --gpus-per-task and torchrun's --virtual-local-rank make the ranks of a node.
@pytest.mark.parametrize("local_rank", ["0", "1"])
def test_ranks_that_see_one_device_each_learn_how_to_see_all(
    node: pytest.MonkeyPatch, local_rank: str
) -> None:
    node.setattr(torch.cuda, "device_count", lambda: 1)
    node.setenv("LOCAL_RANK", local_rank)
    causes = ("sees 1 CUDA device", "LOCAL_WORLD_SIZE = 2")
    remedies = ("--gpus-per-task", "--virtual-local-rank", "CUDA_VISIBLE_DEVICES", "start 1 rank")
    with refused("device_missing", *causes, *remedies):
        choose_device("cuda")


def test_a_rank_alone_needs_no_nccl() -> None:
    cuda = torch.device("cuda", 0)
    assert backend_of(cuda, 2) == "cpu:gloo,cuda:nccl"
    assert backend_of(cuda, 1) == backend_of(CPU, 1) == backend_of(CPU, 8) == "gloo"


def test_products_of_bfloat16_matrices_add_up_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_bf16_reduced_precision_reduction
    try:
        matmul.allow_bf16_reduced_precision_reduction = True
        prepared(monkeypatch, CPU)
        assert matmul.allow_bf16_reduced_precision_reduction
        prepared(monkeypatch, torch.device("cuda", 1))
        assert not matmul.allow_bf16_reduced_precision_reduction
    finally:
        matmul.allow_bf16_reduced_precision_reduction = before


def prepared(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> tuple[list[str], list[torch.device]]:
    """Prepare a device; give what the allocator was told and which device became the process's own."""
    settings: list[str] = []
    own: list[torch.device] = []
    monkeypatch.setattr(device_module, "_set_allocator", settings.append)
    monkeypatch.setattr(torch.cuda, "set_device", own.append)
    prepare_device(device)
    return settings, own


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for variable in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", QUEUES, LOADING):
        # Set and taken away, so that it is as it was when the test ends.
        monkeypatch.setenv(variable, "")
        del os.environ[variable]
    return monkeypatch


def test_segments_are_expandable_by_default(unset: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda", 1)
    assert prepared(unset, cuda) == (["expandable_segments:True"], [cuda])
    for variable in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        with unset.context() as changed:
            changed.setenv(variable, "max_split_size_mb:64")
            assert prepared(changed, cuda) == ([], [cuda])


@pytest.mark.parametrize(
    ("variable", "given", "expected"),
    [(QUEUES, None, "32"), (QUEUES, "1", "1"), (LOADING, None, "EAGER"), (LOADING, "LAZY", "LAZY")],
)
@pytest.mark.parametrize("kind", ["auto", "cuda"])
@pytest.mark.usefixtures("node")
def test_cuda_starts_with_all_queues_and_kernels_by_default(
    unset: pytest.MonkeyPatch, kind: DeviceKind, variable: str, given: str | None, expected: str
) -> None:
    if given is not None:
        unset.setenv(variable, given)
    found: list[str | None] = []

    def start() -> bool:
        found.append(os.environ.get(variable))
        return True

    def count() -> int:
        return 2 if start() else 0

    unset.setattr(torch.cuda, "is_available", start)
    unset.setattr(torch.cuda, "device_count", count)
    choose_device(kind)
    # Not only at last: what is set once CUDA has started comes too late.
    assert len(found) >= 2
    assert set(found) == {expected}


def test_the_cpu_needs_no_preparation(unset: pytest.MonkeyPatch) -> None:
    assert choose_device("cpu") == CPU
    assert prepared(unset, CPU) == ([], [])
    assert QUEUES not in os.environ
    assert LOADING not in os.environ


def test_tests_set_the_workspace_of_cublas_before_they_compute() -> None:
    # It is asked once, whoever computes first, and a later test may ask for the same sums each time.
    assert os.environ[device_module._CUBLAS_VARIABLE] == device_module._CUBLAS_WORKSPACE


def test_torch_takes_the_allocators_settings_by_the_name_it_has() -> None:
    device_module._set_allocator("expandable_segments:False")
    with pytest.raises((RuntimeError, ValueError), match="Unrecognized"):
        device_module._set_allocator("no_such_setting:1")


def test_a_cpu_is_named_by_its_architecture() -> None:
    assert device_name(CPU) == f"{os.uname().machine} CPU"


@pytest.mark.parametrize(("text", "code"), [("out of memory", "out_of_device_memory"), ("no device", None)])
def test_a_device_without_room_for_a_context_is_named(
    monkeypatch: pytest.MonkeyPatch, text: str, code: str | None
) -> None:
    def full(_device: torch.device) -> None:
        message = f"CUDA error: {text}"
        raise RuntimeError(message)

    monkeypatch.setattr(torch.cuda, "set_device", full)
    # Else it stays set for other tests.
    monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace())
    # Without it the preparation sets the allocator of a device.
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "")
    if code is None:
        with pytest.raises(RuntimeError, match=text):
            prepare_device(torch.device("cuda", 0))
    else:
        with refused(code, "cuda:0", "nvidia-smi"):
            prepare_device(torch.device("cuda", 0))
