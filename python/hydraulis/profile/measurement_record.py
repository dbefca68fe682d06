"""What a measurement has found so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hydraulis._core import Scheme
from hydraulis.profile.observations import Conditions, Observation, ObservationFile, Observations

Mixes = Mapping[Scheme, Sequence[Sequence[int]]]


@dataclass(slots=True)
class MeasurementRecord:
    """What has been measured, and what is known well enough; on rank 0."""

    mixes: Mixes
    precision: float
    observations: Observations = field(default_factory=Observations)
    file: ObservationFile | None = None

    def open(self, path: Path, conditions: Conditions) -> None:
        """Go on from a file."""
        self.file = ObservationFile(path, conditions)
        for observation in self.file.observations:
            self.observations.add(observation)

    def add(self, observations: Sequence[Observation]) -> None:
        """Take what one pass has given."""
        for observation in observations:
            self.observations.add(observation)
        if self.file is not None:
            self.file.append(observations)

    def error(self, scheme: Scheme) -> float:
        """Give the greatest relative error of a scheme's median times."""
        return max(self.observations.median_error(str(scheme), lengths) for lengths in self.mixes[scheme])

    def unknown(self) -> list[str]:
        """Name the schemes that are not known well enough."""
        return [str(scheme) for scheme in self.mixes if self.error(scheme) > self.precision]

    def is_complete(self) -> bool:
        """Tell whether every micro-batch was timed at least once."""
        return all(
            tuple(lengths) in self.observations.mixes(str(scheme))
            for scheme, mixes in self.mixes.items()
            for lengths in mixes
        )
