"""The sections `output` and `checkpoint`: the files that a run writes and starts from."""

import dataclasses

from hydraulis.config.check import check_above, check_at_least, check_not_empty


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OutputConfig:
    """The run's folder and its metrics.

    Attributes:
        directory: Folder for metrics, plans, a trace, the profile, checkpoints and the effective
            configuration. If the folder exists, a number is added to its name.
        tensorboard: Whether to write event files for TensorBoard too, into a folder inside `directory`.
        wandb_project: Project of Weights & Biases that records the run; empty for none.
        peak_tflops: Peak TFLOP/s of one rank's device in `train.dtype`, without sparsity, from its data
            sheet. Metrics then have the model FLOPs utilisation (MFU); absent, they leave it out.
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
    """The schedule of checkpoints, and the state that a run starts from.

    A run always writes a checkpoint at its end and when it is stopped.

    Attributes:
        every_steps: Iterations between two checkpoints; 0 or absent for none before the end.
        keep: Number of newest complete checkpoints to keep; 0 for all.
        timeout_s: Seconds after which the wait for a checkpoint is the loss of a rank; absent for no limit of
            its own.
        memory_folder: Folder in the memory of each node, such as `/dev/shm`, that receives a copy of the
            state after each step, so that a loss of ranks costs one step; empty for none.
        keep_best: Whether to keep the checkpoint with the lowest evaluation loss too. Each checkpoint then
            follows an evaluation: `every_steps` is a multiple of `train.evaluate_every`.
        resume: Folder of a run to resume, or `latest` for the newest folder of `output.directory`; empty to
            start a new run.
        weights: Folder of a Hugging Face model with the initial parameters; `model.path` sets it together
            with the model's shape. Empty for random parameters by `train.seed`.
    """

    every_steps: int | None = None
    keep: int = 2
    timeout_s: float | None = None
    memory_folder: str = ""
    keep_best: bool = False
    resume: str = ""
    weights: str = ""

    def __post_init__(self) -> None:
        if self.every_steps is not None:
            check_at_least("checkpoint.every_steps", self.every_steps, 0)
            # 0 cancels the value of a preset.
            object.__setattr__(self, "every_steps", self.every_steps or None)
        check_at_least("checkpoint.keep", self.keep, 0)
        if self.timeout_s is not None:
            check_above("checkpoint.timeout_s", self.timeout_s, 0)
