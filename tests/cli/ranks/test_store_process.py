"""The store's process serves the ranks until the last of them has ended."""

import os
import sys

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

import ranks
from hydraulis.cli.ranks import forked_rank
from hydraulis.cli.ranks.forked_rank import ForkedRank, InheritedFile
from hydraulis.cli.ranks.local_ranks import _reserved_port
from hydraulis.cli.ranks.store_process import LOOPBACK, serve_store

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the store's process is forked on Linux")


def test_the_store_ends_with_the_last_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked_rank, "_context", ranks._context)
    reader, writer = os.pipe()
    other = os.dup(writer)
    with _reserved_port() as port:
        process = ForkedRank(serve_store, port, InheritedFile(reader))
        os.close(reader)
        client = TCPStore(LOOPBACK, port, wait_for_workers=False)
    client.set("beat", "1")
    os.close(writer)
    assert client.get("beat") == b"1"
    assert process.poll() is None
    os.close(other)
    process.wait()
    assert process.poll() == 0
