"""Output that nobody reads any more goes nowhere, and all other errors stay errors."""

import errno
import io
import os
import pty
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import pytest

from hydraulis.cli.terminal.output import lasting_output


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


def test_what_can_be_written_is(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with standard(monkeypatch, writer) as stream:
        with lasting_output():
            assert not sys.stdout.isatty()
            assert sys.stdout.fileno() == writer
            sys.stdout.write("one\n")
            sys.stderr.writelines(["two\n", "thr"])
            sys.stderr.write("ee")
        assert sys.stdout is stream
        assert sys.stderr is stream
    assert read_all(reader) == "one\ntwo\nthree"


def test_a_reader_that_goes_away_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with standard(monkeypatch, writer), lasting_output():
        os.close(reader)
        for line in range(3):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
            sys.stderr.write(f"{line}\n")
        sys.stdout.write("at the end")


def test_what_is_held_back_until_the_end_is_no_error_either(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with standard(monkeypatch, writer) as stream:
        with lasting_output():
            sys.stdout.write("no line")
            os.close(reader)
        stream.flush()


def test_a_terminal_that_hangs_up_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, inside = pty.openpty()
    with standard(monkeypatch, inside), lasting_output():
        assert sys.stdout.isatty()
        os.close(terminal)
        for line in range(3):
            sys.stdout.write(f"{line}\n")
        assert not sys.stdout.isatty()


class Refusing(io.StringIO):
    """A stream without a file, each write to which fails alike."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def write(self, _text: str) -> int:
        raise OSError(self._number, os.strerror(self._number))


def test_a_stream_without_a_file_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Refusing(errno.EPIPE))
    with lasting_output():
        sys.stdout.write("to nobody\n")


def test_other_errors_stay_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Refusing(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"), lasting_output():
        sys.stdout.write("to a full disk\n")
