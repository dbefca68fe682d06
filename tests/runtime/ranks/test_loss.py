"""Two real ranks, of which one fails or is killed while the other waits for its device or for gloo."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from devices import alone_under_torchrun, on_each_device
from helpers import refused
from hydraulis.errors import HydraulisError
from hydraulis.runtime.ranks import flight_recorder
from hydraulis.runtime.ranks.distributed import joined
from hydraulis.runtime.ranks.host_wait import wait_until
from hydraulis.runtime.ranks.liveness import heartbeat
from hydraulis.runtime.ranks.shared_devices import SHARE_VARIABLE

# Rank 1 fails once it is told to.
OTHER = """
from datetime import timedelta
from hydraulis.errors import HydraulisError
from hydraulis.runtime.ranks.distributed import joined

with joined(timedelta(seconds=60)):
    print("joined", flush=True)
    input()
    raise HydraulisError("too much", code="config_value")
"""

# Rank 1 fails alone, while rank 0 waits for it in a sum on the device.
RANK = """
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from hydraulis.errors import HydraulisError
from hydraulis.runtime.ranks.device import choose_device
from hydraulis.runtime.ranks.distributed import joined
from hydraulis.runtime.ranks.flight_recorder import keep_dumps_in
from hydraulis.runtime.ranks.host_wait import wait_for_device

device = choose_device(sys.argv[1])
try:
    with joined(timedelta(seconds=60), device) as rank:
        keep_dumps_in(Path(sys.argv[2]))
        for step in range(2):
            if rank == step == 1:
                raise HydraulisError("too much", code="config_value")
            dist.all_reduce(torch.ones(1, device=device))
            wait_for_device(device)
except HydraulisError as error:
    print(error.code, error, flush=True)
"""

Wait = Callable[[], object]


def device() -> None:
    wait_until(lambda: False)


def gloo() -> None:
    dist.all_reduce(torch.zeros(1))


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """Start rank 1 of two, and describe rank 0 to this process."""
    monkeypatch.setattr(heartbeat, "_current", [])
    monkeypatch.setattr(heartbeat, "_POLL_S", 0.02)
    monkeypatch.setattr(heartbeat, "_BEAT_S", 0.1)
    alone_under_torchrun(monkeypatch)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    environment = os.environ | {"RANK": "1", "LOCAL_RANK": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", OTHER],
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize("wait", [device, gloo])
def test_a_killed_rank_ends_the_wait_at_once(other: subprocess.Popen[str], wait: Wait) -> None:
    def lose() -> None:
        with joined(timedelta(seconds=60)):
            assert other.stdout is not None
            assert other.stdout.readline() == "joined\n"
            other.kill()
            wait()

    with pytest.raises(HydraulisError) as caught:
        lose()
    assert caught.value.code == "lost_rank"
    if wait is device:
        # Its process has ended: no silence is waited for.
        assert "rank 1 ended" in str(caught.value)
    own = heartbeat.current()
    assert own is not None
    printed = own.find_lost(caught.value)
    assert printed is not None
    assert str(printed).startswith("rank 1 (")
    assert ") ended: " in str(printed)


def test_a_rank_that_fails_tells_the_others_why(other: subprocess.Popen[str]) -> None:
    def lose() -> None:
        with joined(timedelta(seconds=60)):
            assert other.stdout is not None
            assert other.stdout.readline() == "joined\n"
            assert other.stdin is not None
            other.stdin.write("\n")
            other.stdin.flush()
            device()

    with refused("lost_rank", "rank 1", "config_value", "too much"):
        lose()


@on_each_device
def test_two_ranks_end_when_one_fails_alone_and_leave_their_collectives(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone_under_torchrun(monkeypatch)
    described = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", SHARE_VARIABLE: "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, device, str(tmp_path)],
            env=os.environ | described | {"RANK": rank, "LOCAL_RANK": rank},
            text=True,
            stdout=subprocess.PIPE,
        )
        for rank in "01"
    ]
    try:
        waiting, failing = (rank.communicate(timeout=120)[0] for rank in ranks)
    finally:
        for rank in ranks:
            rank.kill()
    assert waiting.startswith("lost_rank")
    # Gloo notices the closed connection before the heartbeat has the other rank's failure.
    assert device == "cpu" or ("rank 1" in waiting and "too much" in waiting)
    assert failing.startswith("config_value too much")
    dumps = sorted(tmp_path.glob("flight_recorder/*"))
    assert [dump.name for dump in dumps] == [f"nccl_trace_rank_{rank}" for rank in "01" if device == "cuda"]
    assert all(dump.stat().st_size > 0 for dump in dumps)


def test_the_flight_recorders_dumps_are_in_the_folder_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [*flight_recorder._SETTINGS, flight_recorder._FILE]
    for name in names:
        # Set and taken away, so that it is as it was when the test ends.
        monkeypatch.setenv(name, "")
        del os.environ[name]
    assert flight_recorder.dump_collectives(3) is None
    flight_recorder.set_up_recorder()
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
    assert os.environ["TORCH_NCCL_ENABLE_MONITORING"] == "0"
    assert int(os.environ["TORCH_FR_BUFFER_SIZE"]) > 0
    flight_recorder.keep_dumps_in(tmp_path)
    # The name to which torch itself adds the rank.
    assert os.environ["TORCH_FR_DUMP_TEMP_FILE"] == str(tmp_path / "flight_recorder" / "nccl_trace_rank_")
    if dist.is_nccl_available():
        file = flight_recorder.dump_collectives(3)
        assert file == tmp_path / "flight_recorder" / "nccl_trace_rank_3"
        assert file.stat().st_size > 0


def test_the_environment_overrides_the_recorders_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in flight_recorder._SETTINGS:
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", "elsewhere")
    flight_recorder.set_up_recorder()
    flight_recorder.keep_dumps_in(Path("run"))
    assert {os.environ[name] for name in flight_recorder._SETTINGS} == {"7"}
    assert os.environ["TORCH_FR_DUMP_TEMP_FILE"] == "elsewhere"
