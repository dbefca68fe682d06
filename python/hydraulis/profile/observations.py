"""What was timed, in memory and in a file that a later measurement goes on from."""

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from hydraulis.errors import InvalidInputError
from hydraulis.files import unreadable_error

FORMAT = "hydraulis.measurements/1"

# From the median of absolute deviations to a standard error of the median of n values, times the root of n:
# 1.4826 for the deviation of a normal law, and 1.2533 for its median.
_MEDIAN_ERROR = 1.4826 * 1.2533


class Timing(NamedTuple):
    """Time of one micro-batch on one rank, or on the slowest of a stage, in milliseconds of its clock."""

    forward_ms: float
    backward_ms: float


@dataclass(frozen=True, slots=True)
class Observation:
    """One micro-batch, timed once on one replica.

    Attributes:
        scheme: of the replica, as written.
        lengths: of its sequences.
        stages: the slowest rank's timing, by stage.
    """

    scheme: str
    lengths: tuple[int, ...]
    stages: tuple[Timing, ...]

    def to_json(self) -> str:
        """Give the observation's line of a file, without its end."""
        return json.dumps({"scheme": self.scheme, "lengths": self.lengths, "stages_ms": self.stages})

    @classmethod
    def from_json(cls, line: str) -> "Observation":
        """Read a line of a file; raises KeyError, TypeError or ValueError where it is none."""
        entry = json.loads(line)
        stages = tuple(Timing(float(forward), float(backward)) for forward, backward in entry["stages_ms"])
        return cls(str(entry["scheme"]), tuple(int(length) for length in entry["lengths"]), stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Under which times were measured: times of others say nothing.

    Attributes:
        model: the shape, as JSON.
        stage_layers: those that were stated, as JSON.
        dtype: of parameters and activations.
        context: the kind of context parallelism.
        attention: the kernel.
        device: what was measured on.
        clock: whose time it is, in words.
        ranks: that ran at once.
        torch: its version.
    """

    model: str
    stage_layers: str
    dtype: str
    context: str
    attention: str
    device: str
    clock: str
    ranks: int
    torch: str


class Observations:
    """All that was timed of some schemes, by micro-batch."""

    def __init__(self, observations: Iterable[Observation] = ()) -> None:
        self._timed: dict[tuple[str, tuple[int, ...]], list[tuple[Timing, ...]]] = defaultdict(list)
        for observation in observations:
            self.add(observation)

    def add(self, observation: Observation) -> None:
        """Take one more."""
        self._timed[observation.scheme, observation.lengths].append(observation.stages)

    def mixes(self, scheme: str) -> list[tuple[int, ...]]:
        """Give the micro-batches that were timed under a scheme, in the order of their first timing."""
        return [lengths for known, lengths in self._timed if known == scheme]

    def stage_times(self, scheme: str, lengths: Sequence[int]) -> list[Timing]:
        """Give the median timing of a micro-batch, by stage."""
        timed = self._timed[scheme, tuple(lengths)]
        return [
            Timing(
                statistics.median(timing.forward_ms for timing in timings),
                statistics.median(timing.backward_ms for timing in timings),
            )
            for timings in zip(*timed, strict=True)
        ]

    def median_error(self, scheme: str, lengths: Sequence[int]) -> float:
        """Estimate the relative standard error of a median time; infinite from fewer than three timings."""
        totals = [
            sum(map(sum, stages)) / len(stages) for stages in self._timed.get((scheme, tuple(lengths)), ())
        ]
        if len(totals) < 3:
            return float("inf")
        median = statistics.median(totals)
        deviation = statistics.median(abs(total - median) for total in totals)
        return float(_MEDIAN_ERROR * deviation / median / len(totals) ** 0.5)


class ObservationFile:
    """A file of observations: a line that says under which conditions, then one line for each.

    Args:
        path: of the file; made if it is not there.
        conditions: of what will be added; those of the file must be the same.

    Attributes:
        observations: those of the file.

    Raises:
        InvalidInputError: The file cannot be read or written (codes `file_unreadable`, `file_unwritable`), or
            is no file of observations or was measured under other conditions (`measurements_invalid`).
    """

    def __init__(self, path: Path, conditions: Conditions) -> None:
        self._path = path
        header = {"format": FORMAT} | asdict(conditions)
        lines = _whole_lines(path)
        if lines:
            _check_header(path, lines[0], header)
            self.observations = [_observation(path, number, line) for number, line in enumerate(lines[1:], 2)]
        else:
            self.observations = []
            self._write([json.dumps(header)], "wb")

    def append(self, observations: Iterable[Observation]) -> None:
        """Write observations to the end."""
        self._write([observation.to_json() for observation in observations], "ab")

    def _write(self, lines: Sequence[str], mode: str) -> None:
        try:
            with self._path.open(mode) as file:
                file.write("".join(line + "\n" for line in lines).encode())
        except OSError as error:
            why = error.strerror or error
            message = f"file '{self._path}' cannot be written: {why}; name another file, or make room"
            raise InvalidInputError(message, code="file_unwritable") from error


def num_kept(path: Path) -> int:
    """Count the observations of a file; 0 where there is none."""
    return max(0, len(_whole_lines(path)) - 1)


def _whole_lines(path: Path) -> list[str]:
    """Read the lines; one that was cut off while it was written is removed from the file."""
    try:
        content = path.read_bytes()
        end = content.rfind(b"\n") + 1
        if end < len(content):
            with path.open("r+b") as file:
                file.truncate(end)
        return content[:end].decode().splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable_error(path, error) from error


def _check_header(path: Path, line: str, expected: dict[str, object]) -> None:
    try:
        header = json.loads(line)
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        message = f"file '{path}' has no header of measurements; name another file, or remove it"
        raise InvalidInputError(message, code="measurements_invalid")
    for name, value in expected.items():
        if header.get(name) != value:
            message = (
                f"file '{path}' was measured with {name} = {header.get(name)}, and now it is {value}; "
                "remove it to start again, or write the profile to another file"
            )
            raise InvalidInputError(message, code="measurements_invalid")


def _observation(path: Path, number: int, line: str) -> Observation:
    try:
        return Observation.from_json(line)
    except (KeyError, TypeError, ValueError) as error:
        message = f"file '{path}', line {number} is no measurement ({error!r}); remove the line, or the file"
        raise InvalidInputError(message, code="measurements_invalid") from error
