"""Output without a reader or without room is discarded, and other errors are raised."""

import errno
import io
import os
import pty
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
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


NO_ROOM = [errno.ENOSPC, errno.EDQUOT, errno.EFBIG]


def test_a_stream_without_a_file_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", Refusing(errno.EPIPE))
    with tolerating_lost_output():
        sys.stdout.write("discarded\n")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("number", NO_ROOM)
def test_output_without_room_is_discarded_with_a_note(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    monkeypatch.setattr(sys, "stdout", Refusing(number))
    with tolerating_lost_output():
        for line in range(3):
            sys.stdout.write(f"{line}\n")
    note = f"hydraulis: standard output cannot be written: {os.strerror(number)}; the run continues"
    assert capsys.readouterr().err == f"{note} without it, and its files have everything\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_under_both_streams_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    file = os.open("/dev/full", os.O_WRONLY)
    with standard(monkeypatch, file) as stream, tolerating_lost_output():
        sys.stdout.write("one\n")
        sys.stderr.write("two\n")
        assert os.path.samestat(os.fstat(stream.fileno()), Path(os.devnull).stat())


@pytest.mark.parametrize("number", NO_ROOM)
def test_a_result_without_room_stays_an_error(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    refusing = Refusing(number)
    monkeypatch.setattr(sys, "stdout", refusing)
    with (
        pytest.raises(OSError, match=re.escape(os.strerror(number))),
        tolerating_lost_output(is_result=True),
    ):
        sys.stdout.write("{}\n")
    assert sys.stdout is refusing


def test_standard_streams_return_after_a_failed_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = Refusing(errno.ENOSPC)
    monkeypatch.setattr(refusing, "flush", lambda: refusing.write(""))
    monkeypatch.setattr(sys, "stdout", refusing)
    with pytest.raises(OSError, match="No space left"), tolerating_lost_output(is_result=True):
        pass
    assert sys.stdout is refusing


def test_other_errors_stay_errors_on_standard_output_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Refusing(errno.EBADF))
    monkeypatch.setattr(sys, "stderr", Refusing(errno.EBADF))
    with tolerating_lost_output():
        sys.stderr.write("discarded\n")
        with pytest.raises(OSError, match="Bad file descriptor"):
            sys.stdout.write("into a file that is open for reading\n")
