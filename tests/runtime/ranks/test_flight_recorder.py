"""Errors that backends of process groups have recorded."""

from mmap import ACCESS_READ, mmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import ErrorType
from torch.distributed import distributed_c10d

from hydraulis.runtime.ranks.flight_recorder import _SETTINGS, find_nccl_error
from ranks import run_ranks

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


class Group:
    """Stands for a process group whose backend has recorded an error; None for one that records none."""

    def __init__(self, device: torch.device, error: ErrorType | None) -> None:
        backend = SimpleNamespace() if error is None else SimpleNamespace(get_error=lambda: error)
        self._device_types = [device]
        self._get_backend: Any = {device: backend}.__getitem__


@pytest.mark.parametrize(
    ("last", "found"), [(ErrorType.SUCCESS, None), (ErrorType.REMOTE_ERROR, "REMOTE_ERROR")]
)
def test_the_first_error_of_a_group_on_devices_is_found(
    monkeypatch: pytest.MonkeyPatch, last: ErrorType, found: str | None
) -> None:
    groups = [Group(CPU, ErrorType.COMM_ERROR), Group(CUDA, None), Group(CUDA, ErrorType.SUCCESS)]
    world = SimpleNamespace(pg_map=dict.fromkeys([*groups, Group(CUDA, last)]))
    monkeypatch.setattr(distributed_c10d, "_world", world)
    assert find_nccl_error() == found


@pytest.mark.skipif(torch.version.cuda is None, reason="needs a build of torch for CUDA")
@pytest.mark.parametrize("name", _SETTINGS)
def test_torch_reads_every_variable_that_is_set(name: str) -> None:
    libraries = Path(torch.__file__).parent.glob("lib/libtorch_c*.so")
    assert any(_has(library, name.encode()) for library in libraries)


def _has(library: Path, text: bytes) -> bool:
    with library.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        return content.find(text) >= 0


def test_ranks_of_gloo_have_no_error() -> None:
    assert run_ranks(2, find_nccl_error) == [None, None]


@pytest.mark.gpu
def test_ranks_of_nccl_have_no_error() -> None:
    assert hasattr(torch._C._distributed_c10d.ProcessGroupNCCL, "get_error")
    assert run_ranks(2, find_nccl_error, device="cuda") == [None, None]
