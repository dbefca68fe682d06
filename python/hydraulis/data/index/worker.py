"""A tokenizing process: `python -P -m hydraulis.data.index.worker`, with pickled messages on its pipes.

With -P it imports nothing from the working directory. Its answers have a pipe of their own, so that output
of a library does not mix with them.

It is a program of its own: a forked process would share locks with threads that it lacks, and a spawned one
would import the main program, which in training imports torch in every process.

The parent writes a job, then pieces, and closes the pipe after the last. For each piece the process answers
with blocks, then the broken records if any, then None; an error in their place ends the process. Progress is
in memory that all processes share (`SharedProgress`), and notices between the blocks announce it.
"""

import contextlib
import itertools
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import BinaryIO, Self

from hydraulis.data.index.broken_records import BrokenRecords
from hydraulis.data.index.job import Block, IndexJob, Piece, ProgressNotice, SharedProgress
from hydraulis.errors import HydraulisError

# Pieces of a process in its pipe: one in work, one waiting.
_AHEAD = 2


class WorkerProcesses:
    """Tokenizing processes; their blocks are returned in the order of the pieces.

    Each process works ahead until its first block is taken, so memory is proportional to the processes.

    Args:
        job: Job of the index.
        pieces: Pieces to tokenize, in order.
        number: Number of processes.
        progress: Callback, called with the number of finished pieces.
    """

    def __init__(
        self, job: IndexJob, pieces: Sequence[Piece], number: int, progress: Callable[[float], object]
    ) -> None:
        self._job, self._pieces = job, pieces
        self._processes: list[subprocess.Popen[bytes]] = []
        self._answers: list[BinaryIO] = []
        self._number = number
        self._progress = progress
        self._done = SharedProgress.create(number)

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def _start(self) -> None:
        # The tokenizer's own threads would compete with the other processes for cores.
        environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-P", "-m", "hydraulis.data.index.worker"]
        for number in range(self._number):
            reader, writer = os.pipe()
            self._answers.append(os.fdopen(reader, "rb"))
            try:
                process = subprocess.Popen(
                    [*command, str(number), str(self._done.file), str(writer)],
                    env=environment,
                    pass_fds=[self._done.file, writer],
                    stdin=subprocess.PIPE,
                    # Standard error, also where `sys.stderr` is replaced.
                    stdout=2,
                    # An interrupt at the terminal must reach only the parent, which ends this process.
                    start_new_session=True,
                )
            finally:
                # Without another writer the end of the process ends its answers.
                os.close(writer)
            self._processes.append(process)
            self._send(number, self._job)
            for piece in self._pieces[number :: self._number][:_AHEAD]:
                self._send(number, piece)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            if kind is not None:
                process.kill()
            assert process.stdin is not None  # opened by _start
            # Unread pieces are of no use.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for answers in self._answers:
            answers.close()
        for process in self._processes:
            process.wait()
        self._done.close()

    def blocks(self, place: int) -> Iterator[Block | BrokenRecords]:
        """Yield the blocks of a piece and its broken records; pieces must be requested in order.

        Args:
            place: Index of the piece.

        Raises:
            HydraulisError: The tokenizer was refused, or the process died (code `index_process_failed`).
        """
        number = place % self._number
        while (answer := self._receive(number)) is not None:
            if isinstance(answer, HydraulisError):
                raise answer
            if isinstance(answer, ProgressNotice):
                self._progress(self._done.total())
            else:
                yield answer
        later = place + _AHEAD * self._number
        if later < len(self._pieces):
            self._send(number, self._pieces[later])

    def _send(self, number: int, message: IndexJob | Piece) -> None:
        pipe = self._processes[number].stdin
        assert pipe is not None  # opened by _start
        try:
            pickle.dump(message, pipe)
            pipe.flush()
        except BrokenPipeError as error:
            raise self._died(number) from error

    def _receive(self, number: int) -> Block | BrokenRecords | ProgressNotice | HydraulisError | None:
        pipe = self._answers[number]
        try:
            answer: Block | BrokenRecords | ProgressNotice | HydraulisError | None = pickle.load(pipe)
        except (EOFError, pickle.UnpicklingError) as error:
            raise self._died(number) from error
        return answer

    def _died(self, number: int) -> HydraulisError:
        code = self._processes[number].wait()
        if code == -signal.SIGKILL:
            cause = ", perhaps for lack of memory: start again with fewer data.index_processes"
        else:
            cause = ": correct the error above, if it printed one, and start again"
        message = f"a tokenizing process ended with code {code}{cause}; complete parts are kept"
        return HydraulisError(message, code="index_process_failed")


def serve(requests: BinaryIO, answers: BinaryIO, progress: Callable[[float], object]) -> None:
    """Answer requests until there are no more.

    Args:
        requests: Stream of a job and then pieces.
        answers: Stream of the answers.
        progress: Callback, called with the number of finished pieces.
    """
    job: IndexJob = pickle.load(requests)
    encoder = None
    for number in itertools.count():

        def report(share: float, before: int = number) -> None:
            progress(before + share)
            pickle.dump(ProgressNotice(), answers)
            answers.flush()

        try:
            piece: Piece = pickle.load(requests)
        except EOFError:
            return
        try:
            encoder = encoder or job.encoder()
            for block in job.blocks(piece, encoder, report):
                pickle.dump(block, answers, protocol=pickle.HIGHEST_PROTOCOL)
        except HydraulisError as error:
            pickle.dump(error, answers)
        else:
            pickle.dump(None, answers)
        answers.flush()


def main() -> None:
    """Serve the parent process: read standard input, and answer over a pipe of its own."""
    number, file, answers = map(int, sys.argv[1:])
    try:
        serve(sys.stdin.buffer, os.fdopen(answers, "wb"), partial(SharedProgress(file).write, number))
    except BrokenPipeError:
        # The parent is gone, and closing the pipe would fail again.
        os._exit(1)


if __name__ == "__main__":
    main()
