"""Several processes ask for an index, and one builds it.

A lock belongs to the open file, so the functions of one process can wait for each other.
"""

import errno
import fcntl
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO
from unittest import mock

import pytest

from data.index.small_index import counted_pieces, job_of, texts_of, write_documents, write_lines
from helpers import refused
from hydraulis.data.index import build_lock
from hydraulis.data.index.builder import ensure_index, index_folder
from hydraulis.data.index.files import open_index
from hydraulis.data.index.job import IndexJob


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_lock, "_POLL_S", 0.001)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[BinaryIO]:
    """The lock file of another process that builds the index."""
    write_documents(tmp_path)
    folder = index_folder(job_of(tmp_path), tmp_path / "index")
    folder.mkdir(parents=True)
    with (folder / "lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


@pytest.mark.usefixtures("_small_pieces")
def test_concurrent_processes_build_an_index_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = write_documents(tmp_path)
    read = counted_pieces(monkeypatch)
    with ThreadPoolExecutor(4) as pool:
        ranks = [pool.submit(ensure_index, job_of(tmp_path), tmp_path / "index", 1) for _ in range(4)]
    (folder,) = {rank.result() for rank in ranks}
    assert texts_of(open_index(folder)) == texts
    assert read == job_of(tmp_path).pieces()


def test_the_other_process_is_waited_for_with_its_progress(tmp_path: Path, other: BinaryIO) -> None:
    shares = []

    def waiting(share: float) -> None:
        shares.append(share)
        # The other process ends after the third report, without an index.
        if len(shares) == 3:
            other.close()

    folder = ensure_index(job_of(tmp_path), tmp_path / "index", 1, waiting)
    assert shares[:3] == [0.0] * 3
    assert shares[-1] == 1.0
    assert len(open_index(folder)) > 0


@pytest.mark.usefixtures("_small_pieces")
def test_progress_follows_the_journal_and_counts_the_pieces_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_documents(tmp_path)
    shares: list[float] = []

    def interrupted(share: float) -> None:
        if share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_index(job_of(tmp_path), tmp_path / "index", 1, interrupted)
    folder = index_folder(job_of(tmp_path), tmp_path / "index")
    with (folder / "lock").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        def waiting(share: float) -> None:
            shares.append(share)
            if len(shares) == 5:
                other.close()

        counted = mock.Mock(side_effect=job_of(tmp_path).pieces)
        monkeypatch.setattr(IndexJob, "pieces", lambda _job: counted())
        ensure_index(job_of(tmp_path), tmp_path / "index", 1, waiting)
    assert 0.3 < shares[0] <= 0.5
    assert shares[:5] == [shares[0]] * 5
    # Once to wait, which opens every file, and once to build.
    assert counted.call_count == 2


@pytest.mark.usefixtures("other")
def test_a_process_that_writes_nothing_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_lock, "_STALL_S", 0.0)
    with refused("folder_busy", tmp_path / "index", "0 s", "data.index_directory"):
        ensure_index(job_of(tmp_path), tmp_path / "index", 1)


def test_a_folder_that_is_removed_meanwhile_is_created_again(tmp_path: Path, other: BinaryIO) -> None:
    def waiting(_: float) -> None:
        if not other.closed:
            shutil.rmtree(tmp_path / "index")
            other.close()

    assert len(open_index(ensure_index(job_of(tmp_path), tmp_path / "index", 1, waiting))) > 0


def test_an_index_is_built_on_a_disk_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    texts = write_documents(tmp_path)
    assert texts_of(open_index(ensure_index(job_of(tmp_path), tmp_path / "index", 1))) == texts


def test_every_process_receives_the_refusal_of_the_data(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.jsonl", [{"text": "a"}, {"text": 3}])
    job = job_of(tmp_path, paths=(path,))

    def ask(_: int) -> None:
        with refused("record_malformed", path, "line 2"):
            ensure_index(job, tmp_path / "index", 1)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(4)))
