"""Output without a reader is discarded, and other errors are raised."""

import errno
import io
import os
import pty
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import pytest

from hydraulis.cli.terminal.output import tolerating_lost_output


@contextmanager
def standard(monkeypatch: pytest.MonkeyPatch, file: int) -> Iterator[TextIO]:
    """Let both standard streams be a file, line by line as on a terminal."""
    with os.fdopen(file, "w", buffering=1) as stream, monkeypatch.context() as replaced:
        replaced.setattr(sys, "stdout", stream)
        replaced.setattr(sys, "stderr", stream)
        yield stream


def read_all(file: int) -> str:
    with os.fdopen(file) as stream:
        return stream.read()


def test_output_with_a_reader_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with standard(monkeypatch, writer) as stream:
        with tolerating_lost_output():
            assert not sys.stdout.isatty()
            assert sys.stdout.fileno() == writer
            sys.stdout.write("one\n")
            sys.stderr.writelines(["two\n", "thr"])
            sys.stderr.write("ee")
        assert sys.stdout is stream
        assert sys.stderr is stream
    assert read_all(reader) == "one\ntwo\nthree"


def test_output_is_discarded_when_its_reader_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with standard(monkeypatch, writer), tolerating_lost_output():
        os.close(reader)
        for line in range(3):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
            sys.stderr.write(f"{line}\n")
        sys.stdout.write("at the end")


def test_buffered_output_is_discarded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with standard(monkeypatch, writer) as stream:
        with tolerating_lost_output():
            sys.stdout.write("no line")
            os.close(reader)
        stream.flush()


def test_output_is_discarded_when_its_terminal_hangs_up(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, inside = pty.openpty()
    with standard(monkeypatch, inside), tolerating_lost_output():
        assert sys.stdout.isatty()
        os.close(terminal)
        for line in range(3):
            sys.stdout.write(f"{line}\n")
        assert not sys.stdout.isatty()


class Refusing(io.StringIO):
    """A stream without a file, whose writes fail."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def write(self, _text: str) -> int:
        raise OSError(self._number, os.strerror(self._number))


def test_a_stream_without_a_file_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Refusing(errno.EPIPE))
    with tolerating_lost_output():
        sys.stdout.write("discarded\n")


def test_other_errors_stay_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Refusing(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"), tolerating_lost_output():
        sys.stdout.write("to a full disk\n")
