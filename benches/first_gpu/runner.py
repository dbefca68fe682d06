"""Runs one part in processes of its own, with a time limit, and leaves no process behind."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Status = Literal["passed", "failed", "timed out", "crashed", "not run"]

# Time between the interrupt, the request to end, and the end by force.
_GRACE_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the first minutes on a device.

    Attributes:
        name: Name of the part, and of its log.
        command: Words of its command; `{json}` stands for the file of its figures.
        limit_s: Most seconds that it may take.
        environment: Variables of its process, in addition to those of the caller.
    """

    name: str
    command: Sequence[str]
    limit_s: float
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a part.

    Attributes:
        part: Name of the part.
        status: `passed` for exit status 0, `failed` for another one, `timed out` beyond the limit, `crashed`
            for an end by a signal, `not run` without time left.
        seconds: Wall time.
        note: Exit status, signal or limit, in words.
        output: Text that the part printed.
        figures: Content of the file that the part wrote; empty if it wrote none.
    """

    part: str
    status: Status
    seconds: float
    note: str
    output: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def last_words(self) -> str:
        """The end of the part, with the last line that it printed."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        return ": ".join([self.note, *lines[-1:]])


def run_part(part: Part, folder: Path, left_s: float) -> Outcome:
    """Run a part, and end all its processes when it ends or its time is over.

    Args:
        part: Part to run.
        folder: Folder of the results; the part's log and figures are written there.
        left_s: Seconds that are left for all parts.
    """
    if left_s <= 0:
        return Outcome(part=part.name, status="not run", seconds=0.0, note="no time was left")
    log, figures = folder / f"{part.name}.log", folder / f"{part.name}.json"
    figures.unlink(missing_ok=True)
    command = [word.replace("{json}", str(figures)) for word in part.command]
    limit_s, start = min(part.limit_s, left_s), time.monotonic()
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **part.environment},
                # All processes of the part are in one session, by which they are found in the end.
                start_new_session=True,
            )
            status, note = _wait(process, limit_s)
    except OSError as error:
        status, note = "failed", f"it did not start: {error}"
    return Outcome(
        part=part.name,
        status=status,
        seconds=round(time.monotonic() - start, 1),
        note=note,
        output=log.read_text(encoding="utf-8", errors="replace") if log.exists() else "",
        figures=_read(figures),
    )


def _wait(process: "subprocess.Popen[bytes]", limit_s: float) -> tuple[Status, str]:
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return "timed out", f"ended after its limit of {limit_s:.0f} s"
    finally:
        _end(process)
    if code < 0:
        return "crashed", f"ended by signal {-code} ({_signal_name(-code)})"
    return ("passed" if code == 0 else "failed"), f"exit status {code}"


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the process and all that it started.

    First by an interrupt of the process, on which pytest prints the failures so far, then by request, then by
    force.
    """
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    deadline = time.monotonic() + _GRACE_S
    _send(process.pid, signal.SIGTERM)
    while _members(process.pid) and time.monotonic() < deadline:
        process.poll()
        time.sleep(0.02)
    _send(process.pid, signal.SIGKILL)
    process.wait()


def _send(session: int, number: signal.Signals) -> None:
    for pid in _members(session):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _members(session: int) -> list[int]:
    """Return the living processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # Behind the name in brackets: state, parent, process group, session.
                state, _, _, own, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(own) == session and state != "Z":
                found.append(int(entry.name))
    return found


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _read(figures: Path) -> dict[str, Any]:
    """Read the figures of a part; an unfinished file counts as none."""
    try:
        found = json.loads(figures.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
