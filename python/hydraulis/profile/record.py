"""The record of a measurement on rank 0, which a file can carry over to a later measurement."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import IO, Any

from hydraulis._core import Scheme
from hydraulis.errors import InvalidInputError
from hydraulis.files import unreadable_error
from hydraulis.planner.profile_document import Workload
from hydraulis.profile.observations import Observation, Observations
from hydraulis.text.documents import parse_json

FORMAT = "hydraulis.measurements/1"

Mixes = Mapping[Scheme, Sequence[Sequence[int]]]


# Conditions of a measurement by name, as JSON has them.
Conditions = Mapping[str, object]


def conditions_of(workload: Workload, ranks: int) -> Conditions:
    """Return the conditions of a measurement; times under different conditions are not comparable.

    Args:
        workload: Conditions that a profile of the measurement has.
        ranks: Number of ranks that ran at the same time.
    """
    others = {field.name for field in fields(workload)} - {"model", "split"}
    return {
        "model": workload.model.to_json(),
        "stage_layers": json.dumps(workload.split.stated),
        "ranks": ranks,
        **{name: getattr(workload, name) for name in sorted(others)},
    }


class ObservationFile:
    """A file of observations: a header with the conditions, then one line per observation.

    An interrupted write leaves a last line without an end. It is removed once the header is accepted.

    Args:
        path: Path of the file, which is made if it does not exist.
        conditions: Conditions of the measurement; an existing file must have the same.

    Attributes:
        observations: Observations of an existing file.

    Raises:
        InvalidInputError: The file cannot be read or written (codes `file_unreadable`, `file_unwritable`), or
            is no file of observations or was measured under other conditions (`measurements_invalid`).
    """

    def __init__(self, path: Path, conditions: Conditions) -> None:
        self._path = path
        header = {"format": FORMAT, **conditions}
        lines, rest = _read_lines(path)
        self.observations: list[Observation] = []
        if not lines:
            self._start(json.dumps(header), rest)
            return
        _check_header(path, lines[0], header)
        self.observations = [_observation(path, number, line) for number, line in enumerate(lines[1:], 2)]
        if rest:
            with self._opened("r+b") as file:
                file.truncate(path.stat().st_size - len(rest))

    def append(self, observations: Iterable[Observation]) -> None:
        """Append observations to the file."""
        self._write([observation.to_json() for observation in observations], "ab")

    def _start(self, header: str, rest: bytes) -> None:
        """Write the header in place of its part that an interrupted write left."""
        if not header.encode().startswith(rest):
            raise _no_header(self._path)
        self._write([header], "wb")

    def _write(self, lines: Sequence[str], mode: str) -> None:
        with self._opened(mode) as file:
            file.write("".join(line + "\n" for line in lines).encode())

    @contextmanager
    def _opened(self, mode: str) -> Iterator[IO[Any]]:
        try:
            with self._path.open(mode) as file:
                yield file
        except OSError as error:
            why = error.strerror or error
            message = f"file '{self._path}' cannot be written: {why}; name another file, or free disk space"
            raise InvalidInputError(message, code="file_unwritable") from error


@dataclass(slots=True)
class MeasurementRecord:
    """The observations of a measurement so far, on rank 0.

    Attributes:
        mixes: Micro-batches to time, by scheme.
        precision: Sufficient relative standard error of a median time.
        observations: Observations so far.
        file: File of the observations; None without a file.
    """

    mixes: Mixes
    precision: float
    observations: Observations = field(default_factory=Observations)
    file: ObservationFile | None = None

    def open(self, path: Path, conditions: Conditions) -> None:
        """Continue from a file, or start one."""
        self.file = ObservationFile(path, conditions)
        for observation in self.file.observations:
            self.observations.add(observation)

    def add(self, observations: Sequence[Observation]) -> None:
        """Add observations, and append them to the file."""
        for observation in observations:
            self.observations.add(observation)
        if self.file is not None:
            self.file.append(observations)

    def imprecise_schemes(self) -> list[str]:
        """Return the schemes with a median time whose error is above the precision."""
        return [str(scheme) for scheme in self.mixes if self._error(scheme) > self.precision]

    def is_complete(self) -> bool:
        """Whether every micro-batch was timed at least once."""
        return all(
            tuple(lengths) in self.observations.mixes(str(scheme))
            for scheme, mixes in self.mixes.items()
            for lengths in mixes
        )

    def _error(self, scheme: Scheme) -> float:
        return max(self.observations.median_error(str(scheme), lengths) for lengths in self.mixes[scheme])


def count_observations(path: Path) -> int:
    """Count the observations of a file; 0 without a file."""
    lines, _ = _read_lines(path)
    return max(0, len(lines) - 1)


def _read_lines(path: Path) -> tuple[list[str], bytes]:
    """Return the complete lines of a file, and the bytes after them; nothing without a file."""
    try:
        content = path.read_bytes()
        end = content.rfind(b"\n") + 1
        return content[:end].decode().splitlines(), content[end:]
    except FileNotFoundError:
        return [], b""
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable_error(path, error) from error


def _check_header(path: Path, line: str, expected: dict[str, object]) -> None:
    try:
        header = parse_json(line)
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise _no_header(path)
    for name, value in expected.items():
        if header.get(name) != value:
            message = (
                f"file '{path}' was measured with {name} = {header.get(name)}, and now it is {value}; "
                "remove it to start again, or write the profile to another file"
            )
            raise InvalidInputError(message, code="measurements_invalid")


def _no_header(path: Path) -> InvalidInputError:
    message = f"file '{path}' has no header of measurements; name another file, or remove it"
    return InvalidInputError(message, code="measurements_invalid")


def _observation(path: Path, number: int, line: str) -> Observation:
    try:
        return Observation.from_json(line)
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        message = f"file '{path}', line {number} is no measurement ({error!r}); remove the line, or the file"
        raise InvalidInputError(message, code="measurements_invalid") from error
