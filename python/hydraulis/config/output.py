"""The section `output`: what a run leaves behind."""

import dataclasses

from hydraulis.config.check import check_above, check_at_least, check_not_empty


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
        check_not_empty("output.directory", self.directory)
        if self.peak_tflops is not None:
            check_above("output.peak_tflops", self.peak_tflops, 0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """When the state of training is written, how much of it is kept, and where a run begins.

    A run always leaves a checkpoint at its end, and where it is stopped.

    Attributes:
        every_steps: iterations from one checkpoint to the next; 0 or absent for none before the end.
        keep: the newest complete checkpoints that stay; 0 for all.
        resume: the folder of a run to go on with, or `latest` for the newest of those that `output.directory`
            names; empty to begin anew.
        weights: the folder of a Hugging Face model whose parameters training starts from; `model.path` gives
            it together with the model's shape. Empty to draw them by `train.seed`.
    """

    every_steps: int | None = None
    keep: int = 2
    resume: str = ""
    weights: str = ""

    def __post_init__(self) -> None:
        if self.every_steps is not None:
            check_at_least("checkpoint.every_steps", self.every_steps, 0)
            # So that a preset's can be taken back.
            object.__setattr__(self, "every_steps", self.every_steps or None)
        check_at_least("checkpoint.keep", self.keep, 0)
