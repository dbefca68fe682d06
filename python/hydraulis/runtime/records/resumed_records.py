"""Brings a run's records back to the step of its checkpoint, whatever a crash or a disk left of them.

`metrics.jsonl`, `plans.jsonl` and `times.jsonl` have a line for each step, and the n-th lines of all three
belong to one step, the `step` of the metrics. Metrics are kept up to the first line that cannot be read; a
plan or times that were lost are `null`. Records never decide whether a run can be resumed.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import islice, takewhile
from typing import TypeVar

from hydraulis._core import Strategy
from hydraulis.files import open_unlinked, unreadable_error
from hydraulis.runtime.records.evaluation import Evaluation
from hydraulis.runtime.records.run_directory import (
    CALIBRATIONS,
    EVALUATIONS,
    METRICS,
    PLANS,
    SAMPLES,
    TIMES,
    TRACE,
    RunDirectory,
)
from hydraulis.runtime.records.samples import Samples
from hydraulis.runtime.records.trace import traced_step
from hydraulis.text.documents import parse_json
from hydraulis.text.values import format_count

T = TypeVar("T")

LOST = "null"
"""Line in place of a plan or times that were lost, and of times that counting memory would distort."""


def bring_to_step(directory: RunDirectory, step: int) -> list[str]:
    """Remove the records of iterations after `step`, and those that cannot be read.

    Args:
        directory: The run's folder.
        step: Completed iterations of the checkpoint.

    Returns:
        A note for each file that lacks records of the completed iterations.

    Raises:
        HydraulisError: A file cannot be read (code `file_unreadable`), or written (`file_unwritable`).
    """
    steps = list(_steps(directory, step))
    directory.keep_lines(METRICS, len(steps))
    missing = step - steps[-1] if steps else step
    notes = [_note(METRICS, missing, step)] if missing else []
    notes += [
        _note(name, lost, step)
        for name in (PLANS, TIMES)
        if (lost := _keep_beside(directory, name, len(steps)))
    ]
    for name, step_of in _STEP_OF.items():
        unreadable = _keep_readable(directory, name, step, step_of)
        if unreadable:
            notes.append(f"{format_count(unreadable, 'line')} of {name} could not be read: removed")
    notes += _keep_trace(directory, step)
    return notes


def record_lines(directory: RunDirectory, name: str) -> Iterator[bytes]:
    """Yield the complete lines of a file; none if it is absent.

    Raises:
        InvalidInputError: The file cannot be read (code `file_unreadable`).
    """
    path = directory.path / name
    if path.is_file():
        try:
            with open_unlinked(path, "rb") as file:
                yield from takewhile(lambda line: line.endswith(b"\n"), file)
        except OSError as error:
            raise unreadable_error(path, error) from error


def read_record(content: bytes, parse: Callable[[str], T]) -> T | None:
    """Parse a record; None if it is unreadable."""
    try:
        return parse(content.decode())
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def read_lines(directory: RunDirectory, name: str, parse: Callable[[str], T]) -> Iterator[T]:
    """Yield the records of a file that can be read, one for each line."""
    for line in record_lines(directory, name):
        record = read_record(line, parse)
        if record is not None:
            yield record


def read_calibration(line: str) -> tuple[int, dict[str, float]]:
    """Read a line of `calibrations.jsonl`: a step, and the correction factors of the schemes after it.

    Raises:
        ValueError: The line is no such record.
    """
    entry = parse_json(line)
    step, factors = entry["step"], entry["factors"]
    if type(step) is not int or not all(0 < factor < math.inf for factor in factors.values()):
        message = f"step {step} has factors {factors}"
        raise ValueError(message)
    return step, factors


def read_strategy(line: str) -> tuple[int, str]:
    """Read the step and the strategy of a line of `metrics.jsonl`, of this version or another one.

    Raises:
        ValueError: The line has none.
    """
    entry = parse_json(line)
    step, strategy = entry["step"], str(Strategy(entry["strategy"]))
    if type(step) is not int:
        message = f"step {step} is no whole number"
        raise ValueError(message)
    return step, strategy


def _note(name: str, lost: int, step: int) -> str:
    return f"{name} lacks {format_count(lost, 'step')} of the {step:,} before: their records were lost"


def _steps(directory: RunDirectory, last: int) -> Iterator[int]:
    """Yield the steps of the leading metrics, up to `last`, while they can be read and ascend."""
    before = 0
    for line in record_lines(directory, METRICS):
        record = read_record(line, read_strategy)
        if record is None or not before < record[0] <= last:
            return
        before = record[0]
        yield before


def _keep_beside(directory: RunDirectory, name: str, lines: int) -> int:
    """Keep as many lines as there are metrics, with `null` for lost ones; return the number of these."""
    readable = takewhile(_looks_whole, record_lines(directory, name))
    kept = sum(1 for _ in islice(readable, lines))
    directory.keep_lines(name, kept)
    if kept < lines:
        directory.append(name, "\n".join([LOST] * (lines - kept)))
    return lines - kept


def _looks_whole(line: bytes) -> bool:
    # To parse the plans of a long run would take minutes.
    ends = (line[:1], line[-2:-1])
    return ends in ((b"{", b"}"), (b"[", b"]")) or line == f"{LOST}\n".encode()


def _keep_readable(directory: RunDirectory, name: str, last: int, step_of: Callable[[str], int]) -> int:
    """Keep the readable lines of steps up to `last`; return the number of unreadable lines."""
    lines = list(record_lines(directory, name))
    steps = [read_record(line, step_of) for line in lines]
    kept = [line for line, step in zip(lines, steps, strict=True) if step is not None and step <= last]
    if lines and kept != lines:
        directory.write(name, b"".join(kept))
    else:
        directory.keep_lines(name, len(lines))
    return steps.count(None)


def _keep_trace(directory: RunDirectory, last: int) -> list[str]:
    path = directory.path / TRACE
    if not path.is_file():
        return []
    step = read_record(path.read_bytes(), lambda text: traced_step(parse_json(text)))
    if step is not None and step <= last:
        return []
    directory.remove(TRACE)
    return [] if step is not None else [f"{TRACE} could not be read: removed"]


_STEP_OF: Mapping[str, Callable[[str], int]] = {
    CALIBRATIONS: lambda line: read_calibration(line)[0],
    EVALUATIONS: lambda line: Evaluation.from_json(line).step,
    SAMPLES: lambda line: Samples.from_json(line).step,
}
"""Reader of the step of a line, by the files that have a line for some steps."""
