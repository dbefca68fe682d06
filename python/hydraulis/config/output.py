"""The section `output`: what a run leaves behind."""

import dataclasses

from hydraulis.config.check import not_empty


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OutputConfig:
    """What a run leaves behind.

    Attributes:
        directory: the folder for metrics, plans, a trace, the profile, checkpoints and the effective
            configuration; where it exists, a number is added to its name.
    """

    directory: str

    def __post_init__(self) -> None:
        not_empty("output.directory", self.directory)
