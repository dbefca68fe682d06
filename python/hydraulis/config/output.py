"""The section `output`: what a run leaves behind."""

import dataclasses

from hydraulis.config.check import above, not_empty


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OutputConfig:
    """What a run leaves behind, and who is told of it.

    Attributes:
        directory: the folder for metrics, plans, a trace, the profile, checkpoints and the effective
            configuration; where it exists, a number is added to its name.
        tensorboard: whether event files for TensorBoard are written too, into a folder of it.
        wandb_project: the project of Weights & Biases that is told of the run; empty for none.
        peak_tflops: what one rank's device computes at its peak in `train.dtype`, without sparsity, by its
            data sheet: metrics then have the share of it that the model's operations take (MFU). Absent, it
            is left out.
    """

    directory: str
    tensorboard: bool = False
    wandb_project: str = ""
    peak_tflops: float | None = None

    def __post_init__(self) -> None:
        not_empty("output.directory", self.directory)
        if self.peak_tflops is not None:
            above("output.peak_tflops", self.peak_tflops, 0)
