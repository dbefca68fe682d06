"""Joining the process group that torchrun describes."""

from datetime import timedelta

import pytest
import torch.distributed as dist

from devices import alone_under_torchrun
from hydraulis import InvalidInputError
from hydraulis.runtime.distributed import joined

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    alone_under_torchrun(monkeypatch)
    return monkeypatch


@pytest.mark.parametrize("name", VARIABLES)
def test_a_process_that_torchrun_did_not_start_is_refused(torchrun: pytest.MonkeyPatch, name: str) -> None:
    torchrun.delenv(name)
    with pytest.raises(InvalidInputError, match=f"^{name} not set.*torchrun --nproc") as caught:
        joined(timedelta(seconds=5)).__enter__()
    assert caught.value.code == "not_torchrun"
    assert not dist.is_initialized()


@pytest.mark.usefixtures("torchrun")
def test_the_group_lasts_as_long_as_the_context() -> None:
    with joined(timedelta(seconds=20)) as rank:
        assert rank == 0
        assert dist.get_world_size() == 1
        assert dist.get_backend() == "gloo"
    assert not dist.is_initialized()


@pytest.mark.usefixtures("torchrun")
def test_an_error_leaves_the_group_too() -> None:
    message = "planted"
    with pytest.raises(RuntimeError, match=message), joined(timedelta(seconds=20)):
        raise RuntimeError(message)
    assert not dist.is_initialized()
