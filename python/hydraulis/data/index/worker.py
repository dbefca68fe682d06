"""A process that tokenises: `python -m hydraulis.data.index.worker`, spoken to over its pipes.

It is a program of its own, because a forked process shares locks with threads that it does not have, and a
spawned one imports the program that started it: of a training run that is torch, once for each process.

Whoever starts it writes a job, then pieces, and closes the pipe when there are no more; for each piece it
answers with blocks, at last with what is broken, and then None, or with the error that ends it. How far it
is stands in memory that all processes share (`SharedProgress`); between the blocks it says that there is
something new there.
"""

import contextlib
import itertools
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import BinaryIO, Self

from hydraulis.data.index.broken_records import BrokenRecords
from hydraulis.data.index.job import Block, IndexJob, Piece
from hydraulis.data.index.shared_progress import ProgressNotice, SharedProgress
from hydraulis.errors import HydraulisError

# A process works on one piece while the next one waits for it.
_AHEAD = 2


class WorkerProcesses:
    """Processes that tokenise pieces; the blocks come in the order of the pieces.

    Each process works ahead until its first block is taken, so as much is in memory as there are processes.

    Args:
        job: what is indexed.
        pieces: to tokenise, in order.
        number: of processes.
        tell: called with how many pieces are done, after each block and now and then between them.
    """

    def __init__(
        self, job: IndexJob, pieces: Sequence[Piece], number: int, tell: Callable[[float], None]
    ) -> None:
        self._job, self._pieces = job, pieces
        self._processes: list[subprocess.Popen[bytes]] = []
        self._number = number
        self._tell = tell
        self._done = SharedProgress.create(number)

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def _start(self) -> None:
        # The tokenizers' own threads would fight over the cores that other processes use.
        environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "hydraulis.data.index.worker"]
        for number in range(self._number):
            process = subprocess.Popen(
                [*command, str(number), str(self._done.file)],
                env=environment,
                pass_fds=[self._done.file],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # An interrupt at the terminal is for the program that started it, which ends this one.
                start_new_session=True,
            )
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
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    # What was not read any more is of no use.
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
        for process in self._processes:
            process.wait()
        self._done.close()

    def blocks(self, place: int) -> Iterator[Block | BrokenRecords]:
        """Give the blocks of a piece, and what of it is broken; pieces are asked for in order.

        Args:
            place: of the piece among the pieces.

        Raises:
            HydraulisError: the tokenizer was refused, or the process died (code `index_process_failed`).
        """
        number = place % self._number
        while (answer := self._receive(number)) is not None:
            if isinstance(answer, HydraulisError):
                raise answer
            if isinstance(answer, ProgressNotice):
                self._tell(self._done.total())
            else:
                yield answer
        later = place + _AHEAD * self._number
        if later < len(self._pieces):
            self._send(number, self._pieces[later])

    def _send(self, number: int, message: IndexJob | Piece) -> None:
        pipe = self._processes[number].stdin
        assert pipe is not None  # asked for above
        try:
            pickle.dump(message, pipe)
            pipe.flush()
        except BrokenPipeError as error:
            raise self._died(number) from error

    def _receive(self, number: int) -> Block | BrokenRecords | ProgressNotice | HydraulisError | None:
        pipe = self._processes[number].stdout
        assert pipe is not None  # asked for above
        try:
            answer: Block | BrokenRecords | ProgressNotice | HydraulisError | None = pickle.load(pipe)
        except (EOFError, pickle.UnpicklingError) as error:
            raise self._died(number) from error
        return answer

    def _died(self, number: int) -> HydraulisError:
        code = self._processes[number].wait()
        message = (
            f"a tokenizing process ended with code {code}, perhaps for lack of memory: start again with "
            "fewer data.index_processes; complete parts are kept"
        )
        return HydraulisError(message, code="index_process_failed")


def serve(requests: BinaryIO, answers: BinaryIO, tell: Callable[[float], None]) -> None:
    """Answer until there are no more requests.

    Args:
        requests: a job, then pieces.
        answers: to them.
        tell: called with how many pieces are done.
    """
    job: IndexJob = pickle.load(requests)
    encoder = None
    for number in itertools.count():

        def within(share: float, before: int = number) -> None:
            tell(before + share)
            pickle.dump(ProgressNotice(), answers)
            answers.flush()

        try:
            piece: Piece = pickle.load(requests)
        except EOFError:
            return
        try:
            encoder = encoder or job.encoder()
            for block in job.blocks(piece, encoder, within):
                pickle.dump(block, answers, protocol=pickle.HIGHEST_PROTOCOL)
        except HydraulisError as error:
            pickle.dump(error, answers)
        else:
            pickle.dump(None, answers)
        answers.flush()


def main() -> None:
    """Serve whoever started this program, over its standard input and output."""
    # What a library prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    number, file = map(int, sys.argv[1:])
    try:
        serve(sys.stdin.buffer, answers, partial(SharedProgress(file).write, number))
    except BrokenPipeError:
        # Whoever asked is gone; closing the pipe would try once more.
        os._exit(1)


if __name__ == "__main__":
    main()
