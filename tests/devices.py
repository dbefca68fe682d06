"""The devices that a test runs on: the CPU here, and CUDA where there is one; and a group of one rank."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
import torch

from hydraulis.runtime.ranks.distributed import joined

on_cuda = (
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
)
on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_cuda)])


def alone_under_torchrun(environment: pytest.MonkeyPatch) -> None:
    """Describe a group of this process alone, as torchrun does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    described = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "GLOO_SOCKET_IFNAME": loopback,
    }
    for name, value in described.items():
        environment.setenv(name, value)


@contextmanager
def one_rank(device: str) -> Iterator[torch.device]:
    """Be a group of one rank on a device, deterministically, for as long as the context lasts."""
    own = torch.device("cuda", 0) if device == "cuda" else torch.device("cpu")
    with pytest.MonkeyPatch.context() as environment:
        alone_under_torchrun(environment)
        try:
            with joined(timedelta(seconds=60), own, deterministic=True):
                yield own
        finally:
            torch.use_deterministic_algorithms(False)
