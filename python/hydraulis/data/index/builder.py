"""Builds an index: tokenizes the records of a source once, and stores tokens and lengths on disk.

Pieces of files are assigned to processes, and written in the order of the files, so an index has the same
bytes for any number of processes. A new attempt continues an interrupted one, and repeats at most the pieces
of its last seconds. Memory is proportional to the number of processes, not to the data.
"""

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

from hydraulis.data.index.broken_records import BrokenRecords, describe_left_out
from hydraulis.data.index.build_lock import build_lock
from hydraulis.data.index.files import Extent, IndexWriter, complete_extent, partial_extent
from hydraulis.data.index.job import Block, IndexJob, Piece
from hydraulis.data.index.worker import WorkerProcesses
from hydraulis.errors import HydraulisError, InvalidInputError
from hydraulis.files import check_folder_writable, nearest_existing
from hydraulis.progress import ShareCallback, ignore_share
from hydraulis.text.values import format_count

# Time between two journals: a sync to disk costs more than repeating this much work.
_SAVE_S = 2.0


def ensure_index(
    job: IndexJob, directory: Path, processes: int, progress: ShareCallback = ignore_share
) -> Path:
    """Return the folder of an index; build the index if it is missing.

    If another process builds it, such as another rank, wait for that process.

    Args:
        job: Job of the index.
        directory: Folder of all indexes, each in a folder of its own.
        processes: Number of tokenizing processes; 0 for one per core.
        progress: Callback, called with the finished share, at the start, after each block and in between.

    Raises:
        InvalidInputError: Records, a file or the tokenizer are refused (finished pieces are kept; without any
            the folder is removed), a file changes meanwhile (`data_file_invalid`; the folder is removed),
            there is no document (code `corpus_empty`), or an earlier attempt left out broken records that
            are refused now (`record_malformed`).
        HydraulisError: Another process builds this index and is stuck (code `folder_busy`), a process died
            (`index_process_failed`), or a file cannot be written (`index_damaged`).
    """
    folder = index_folder(job, directory)
    try:
        if complete_extent(folder) is None:
            with build_lock(folder, _waiting(job, folder, progress)), _no_invalid_folder(job, folder):
                # Another process may have completed it meanwhile.
                if complete_extent(folder) is None:
                    _build(job, folder, processes or _num_cores(), progress)
    except OSError as error:
        raise _unwritable(folder, error) from error
    extent = complete_extent(folder)
    assert extent is not None  # it was built above
    check_extent(job, extent)
    return folder


def check_index_directory(directory: Path) -> None:
    """Check that indexes can be written to a folder.

    Raises:
        HydraulisError: They cannot (code `index_damaged`).
    """
    try:
        check_folder_writable(nearest_existing(directory))
    except OSError as error:
        raise _unwritable(directory, error) from error


def _unwritable(folder: Path, error: OSError) -> HydraulisError:
    room = "make room, or " if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    # A command on data files alone has no configuration.
    elsewhere = "" if folder.is_absolute() else ", or run the command in a folder that can be written"
    message = (
        f"index '{folder}' cannot be written ({error.strerror or error}): {room}set data.index_directory to "
        f"another folder{elsewhere}"
    )
    return HydraulisError(message, code="index_damaged")


def index_folder(job: IndexJob, directory: Path) -> Path:
    """Return the folder of an index, whether or not it exists."""
    return directory / job.key()[:16]


def check_extent(job: IndexJob, extent: Extent) -> None:
    """Refuse a complete index without documents, or without records that the job does not skip.

    Raises:
        InvalidInputError: The index is refused (codes `corpus_empty`, `record_malformed`).
    """
    if extent.documents == 0:
        raise _no_document(job, extent)
    _check_broken(job, extent)


def _check_broken(job: IndexJob, extent: Extent) -> None:
    if job.broken_records == "refuse" and extent.broken:
        message = (
            f"{describe_left_out(extent.broken, extent.first_broken)}; that was with "
            'data.broken_records = "skip": set it again, or correct the files'
        )
        raise InvalidInputError(message, code="record_malformed")


def _no_document(job: IndexJob, extent: Extent) -> InvalidInputError:
    if extent.broken:
        message = (
            f"no document is in {_files(job)}, {format_count(extent.broken, 'broken record')} left out, "
            f"the first: {extent.first_broken[0]}"
        )
        return InvalidInputError(message, code="corpus_empty")
    if not extent.without_target:
        return no_record(job)
    message = (
        f"no document of {_files(job)} has a target, {format_count(extent.without_target, 'document')} left "
        "out: check them and the tokens that count in the loss"
    )
    return InvalidInputError(message, code="corpus_empty")


def no_record(job: IndexJob) -> InvalidInputError:
    """Make the error for files without any record."""
    return InvalidInputError(f"no record is in {_files(job)}: name files with records", code="corpus_empty")


def _files(job: IndexJob) -> str:
    first, *others = job.paths
    return f"file '{first}'" + (f" and {format_count(len(others), 'other')}" if others else "")


def _build(job: IndexJob, folder: Path, processes: int, progress: ShareCallback) -> None:
    pieces = job.pieces()
    encoder = job.encoder()
    start = Extent(dtype=job.dtype.str, masked=encoder.masked)
    with ExitStack() as stack:
        writer = stack.enter_context(IndexWriter(folder, start))
        _check_broken(job, writer.extent)
        before = writer.extent.pieces
        remaining = pieces[before:]

        def report(done: float) -> None:
            progress((before + done) / max(1, len(pieces)))

        # Before the first block, which takes seconds to start.
        report(0.0)
        processes = min(processes, len(remaining))
        workers = None
        # A process takes longer to start than a single piece to tokenize.
        if processes > 1:
            workers = stack.enter_context(WorkerProcesses(job, remaining, processes, report))

        def blocks(place: int) -> Iterator[Block | BrokenRecords]:
            if workers is not None:
                return workers.blocks(place)
            return job.blocks(remaining[place], encoder, lambda share: report(place + share))

        saved = time.monotonic()
        for place in range(len(remaining)):
            broken = _write(writer, blocks(place))
            if broken is not None and job.broken_records == "refuse":
                later = range(place + 1, len(remaining))
                broken.scan_rest((remaining[number], blocks(number)) for number in later)
                raise broken.error(job.paths[broken.file], job.open(broken.file))
            _end_piece(job, writer, remaining[place : place + 2], broken)
            if time.monotonic() - saved > _SAVE_S:
                job.check_unchanged()
                writer.save()
                saved = time.monotonic()
        job.check_unchanged()
        writer.save(complete=True)
    progress(1.0)


def _end_piece(
    job: IndexJob, writer: IndexWriter, pieces: Sequence[Piece], broken: BrokenRecords | None
) -> None:
    """Finish a piece.

    Args:
        job: Job of the index.
        writer: Writer of the piece's blocks.
        pieces: The piece, and the next one if there is any.
        broken: Broken records of the piece, to leave out.

    Raises:
        InvalidInputError: The file ends, and its records are all broken (code `record_malformed`).
    """
    file = pieces[0].file
    path = job.paths[file]
    if broken is not None:
        writer.leave_out(broken.number, broken.describe(job.open(file)))
    ends_file = file != pieces[-1].file or len(pieces) == 1
    extent = writer.extent
    if ends_file and extent.file_broken and not extent.file_readable:
        first = extent.file_first_broken.removeprefix(f"file '{path}', ")
        message = (
            f"file '{path}' has no readable record, {extent.file_broken:,} are broken; the first: {first}"
        )
        raise InvalidInputError(message, code="record_malformed")
    writer.end_piece(ends_file=ends_file)


def _write(writer: IndexWriter, blocks: Iterator[Block | BrokenRecords]) -> BrokenRecords | None:
    """Write all blocks of a piece and return its broken records."""
    broken = None
    for block in blocks:
        if isinstance(block, BrokenRecords):
            broken = block
        else:
            writer.add(block)
    return broken


def _waiting(job: IndexJob, folder: Path, progress: ShareCallback) -> Callable[[], None]:
    """Return a callback that reports the finished share of an index that another process builds."""

    @cache
    def num_pieces() -> int:
        # Opens every file and decompresses the start of each: 0.6 s of CPU time for 40 files.
        return max(1, len(job.pieces()))

    def report() -> None:
        extent = partial_extent(folder)
        progress(0.0 if extent is None else extent.pieces / num_pieces())

    return report


@contextmanager
def _no_invalid_folder(job: IndexJob, folder: Path) -> Iterator[None]:
    """Remove the folder if a file changed, or if data are refused before a piece is finished.

    Raises:
        InvalidInputError: A file changed; it then replaces an error of the build, which may follow from it.
    """
    try:
        yield
    except BaseException as error:
        # A waiting process may take the lock again meanwhile; the folder is then its own.
        try:
            job.check_unchanged()
        except InvalidInputError:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, Exception):
                raise
        if isinstance(error, InvalidInputError):
            partial = partial_extent(folder)
            if partial is None or partial.pieces == 0:
                shutil.rmtree(folder, ignore_errors=True)
        raise


def _num_cores() -> int:
    return len(os.sched_getaffinity(0))
