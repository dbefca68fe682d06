"""The collectives of a tensor group in each of their ways, between ranks on this machine's devices.

One rank runs on each device, on at most 8. Two ranks share a single device: NCCL then exchanges over the
loopback interface, and times only show that a way runs. On the CPU two ranks exchange over gloo.

The ranks write their rows one after another, so a way that hangs costs only the ways after it.
"""

import dataclasses
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from benches.gpu.rows import Piece, PieceRow, measure_piece
from benches.gpu.workload import Clock, described_rank
from torch.multiprocessing.spawn import ProcessContext, spawn

from hydraulis import Cluster
from hydraulis.parallel import collectives
from hydraulis.parallel.communicators import nccl_options
from hydraulis.parallel.groups import ProcessGroups
from hydraulis.parallel.symmetric_memory import SymmetricBuffer, require_symmetric_memory
from hydraulis.runtime.ranks.device import choose_device, tensor_backend_of
from hydraulis.runtime.ranks.distributed import joined
from hydraulis.runtime.ranks.shared_devices import SHARE_VARIABLE

_MOST_RANKS, _CHANNELS = 8, 16
_TIMEOUT = timedelta(seconds=60)
_LIMIT_S = 90.0
TOKENS, HIDDEN = 8192, 4096


@dataclasses.dataclass(frozen=True, slots=True)
class _Setting:
    device: str
    ranks: int
    devices: int
    repetitions: int
    tiny: bool
    path: str

    @property
    def words(self) -> str:
        """The ranks of a piece, for its name."""
        shared = "" if self.ranks <= self.devices else ", one device shared"
        return f"{self.ranks} ranks{shared}"


def measure_collectives(device: torch.device, clock: Clock, *, tiny: bool) -> list[PieceRow]:
    """Start the ranks, and return rank 0's times of every way."""
    devices = torch.cuda.device_count() if device.type == "cuda" else 2
    # All tokens must split evenly.
    ranks = 2 if devices == 1 else 1 << int(math.log2(min(devices, _MOST_RANKS)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.jsonl")
        path.touch()
        setting = _Setting(device.type, ranks, devices, clock.repetitions, tiny, str(path))
        described = described_rank(0, ranks)
        context = spawn(_run_rank, (setting, described["MASTER_PORT"]), ranks, join=False)
        failure = _wait(context)
        rows = [PieceRow(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    if failure:
        rows.append(PieceRow(piece=f"collectives of {setting.words}", way="the others", refusal=failure))
    return rows


def _wait(context: ProcessContext) -> str:
    """Wait for the ranks' end, end them after the limit, and return why not all ways were measured."""
    end = time.monotonic() + _LIMIT_S
    try:
        while not context.join(timeout=1.0):
            if time.monotonic() > end:
                return f"the ranks took more than {_LIMIT_S:.0f} s"
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:200]}"
    finally:
        for process in context.processes:
            process.kill()
    return ""


def _run_rank(rank: int, setting: _Setting, port: str) -> None:
    os.environ.update(described_rank(rank, setting.ranks) | {"MASTER_PORT": port})
    if setting.ranks > setting.devices:
        os.environ[SHARE_VARIABLE] = "1"
    device = choose_device("cuda" if setting.device == "cuda" else "cpu")
    with joined(_TIMEOUT, device):
        for row in _rows(setting, device):
            if rank == 0:
                with Path(setting.path).open("a", encoding="utf-8") as file:
                    file.write(json.dumps(dataclasses.asdict(row)) + "\n")


def _rows(setting: _Setting, device: torch.device) -> Iterator[PieceRow]:
    clock = Clock(device, setting.repetitions)
    group = dist.group.WORLD
    assert group is not None
    tokens, hidden = (16, 8) if setting.tiny else (TOKENS, HIDDEN)
    x_TH = torch.randn(tokens, hidden, dtype=torch.bfloat16, device=device)
    x_tH = x_TH.chunk(setting.ranks)[dist.get_rank()]

    def scatter(*, native: bool, buffer: SymmetricBuffer | None = None) -> None:
        with patch.object(collectives, "_is_native", lambda _: native):
            collectives.reduce_scatter_tokens(x_TH, group, buffer)

    def gather(buffer: SymmetricBuffer | None = None) -> None:
        collectives.all_gather_tokens(x_tH, group, buffer)

    moved = x_TH.nbytes * (setting.ranks - 1) / setting.ranks
    scattering = partial(Piece, name=f"reduce-scatter of {setting.words}", moved_bytes=moved)
    gathering = partial(Piece, name=f"all-gather of {setting.words}", moved_bytes=moved)
    measure = partial(measure_piece, device=device, clock=clock, tiny=setting.tiny)
    plain = {
        "exchanged, then summed by one kernel": partial(scatter, native=False),
        "hydraulis, the backend's own": partial(scatter, native=True),
    }
    yield from measure(scattering(make=lambda *_: plain))
    yield from measure(gathering(make=lambda *_: {"the backend's own": gather}))
    if device.type != "cuda":
        return
    # Last, since a rank that fails to map a buffer leaves the others waiting.
    buffer = _buffer(setting, device)
    copied = {"hydraulis, symmetric memory": partial(scatter, native=False, buffer=buffer)}
    yield from measure(scattering(make=lambda *_: copied))
    yield from measure(gathering(make=lambda *_: {"hydraulis, symmetric memory": partial(gather, buffer)}))


def _buffer(setting: _Setting, device: torch.device) -> SymmetricBuffer | None:
    require_symmetric_memory(device, setting.ranks)
    options: Callable[[], object] = partial(nccl_options, _CHANNELS, _TIMEOUT)
    groups = ProcessGroups(_TIMEOUT, tensor_backend_of(device), device, options)
    groups.share_memory([setting.ranks], Cluster(gpus=setting.ranks, gpus_per_node=setting.ranks))
    return groups.buffer(range(setting.ranks))
