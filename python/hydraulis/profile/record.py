"""The record of a measurement on rank 0, which a file can carry over to a later measurement."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hydraulis._core import Scheme
from hydraulis.config.kinds import ShardingKind
from hydraulis.errors import InvalidInputError
from hydraulis.files import unreadable_error
from hydraulis.profile.observations import Observation, Observations
from hydraulis.text.documents import parse_json

FORMAT = "hydraulis.measurements/1"

Mixes = Mapping[Scheme, Sequence[Sequence[int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The conditions of a measurement; times under different conditions are not comparable.

    Attributes:
        model: Shape of the model, as JSON.
        stage_layers: Stated split of the layers over stages, as JSON.
        dtype: Dtype of parameters and activations.
        context: Kind of context parallelism.
        attention: Name of the attention kernel.
        compiled: Whether the layers' and the loss's elementwise operations were compiled.
        float8: Whether the layers' linear maps multiplied in float8.
        symmetric_memory: Whether tensor parallelism exchanged through symmetric memory.
        sharding: Tensors that ranks hold in parts.
        device: Name of a rank's device.
        clock: Clock of the times, in words.
        ranks: Number of ranks that ran at the same time.
        torch: Version of torch.
    """

    model: str
    stage_layers: str
    dtype: str
    context: str
    attention: str
    compiled: bool
    float8: bool
    symmetric_memory: bool
    sharding: ShardingKind
    device: str
    clock: str
    ranks: int
    torch: str


class ObservationFile:
    """A file of observations: a header with the conditions, then one line per observation.

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
        header = {"format": FORMAT} | asdict(conditions)
        lines = _complete_lines(path)
        if lines:
            _check_header(path, lines[0], header)
            self.observations = [_observation(path, number, line) for number, line in enumerate(lines[1:], 2)]
        else:
            self.observations = []
            self._write([json.dumps(header)], "wb")

    def append(self, observations: Iterable[Observation]) -> None:
        """Append observations to the file."""
        self._write([observation.to_json() for observation in observations], "ab")

    def _write(self, lines: Sequence[str], mode: str) -> None:
        try:
            with self._path.open(mode) as file:
                file.write("".join(line + "\n" for line in lines).encode())
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
    return max(0, len(_complete_lines(path)) - 1)


def _complete_lines(path: Path) -> list[str]:
    """Read the lines of a file, and remove a last line without an end, which an interrupted write leaves."""
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
        header = parse_json(line)
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
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        message = f"file '{path}', line {number} is no measurement ({error!r}); remove the line, or the file"
        raise InvalidInputError(message, code="measurements_invalid") from error
