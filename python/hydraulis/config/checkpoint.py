"""The section `checkpoint`: what a run keeps of its state, and what it starts from."""

import dataclasses

from hydraulis.config.check import at_least


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
            at_least("checkpoint.every_steps", self.every_steps, 0)
            # So that a preset's can be taken back.
            object.__setattr__(self, "every_steps", self.every_steps or None)
        at_least("checkpoint.keep", self.keep, 0)
