"""The section `train`: how long a run is, and how it computes."""

import dataclasses
from typing import Literal

from hydraulis.config.check import check_above, check_at_least, check_not_empty
from hydraulis.config.kinds import AttentionKind, DeviceKind
from hydraulis.errors import InvalidInputError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """The length of the run and how it computes.

    Attributes:
        steps: the number of iterations.
        epochs: how often the run goes through the data; its last batch is the rest of the last epoch, or left
            out where `data.epoch_end` says so. Of `steps` and `epochs` one is given; where both are, the run
            ends with what is reached first.
        seed: fixes the initial weights and the order of the documents.
        device: what ranks compute on: `cpu`, `cuda` with a device for each rank of a node, or `auto`, which
            is `cuda` where there is any.
        attention: the kernel that computes attention: `auto` for the best that the device and the type admit,
            or `flash-attn`, `torch-flash`, `plain` or `cpu-flash`.
        deterministic: on CUDA, leave out kernels whose results differ from run to run by rounding, which
            costs some speed; on the CPU there are none.
        dtype: the type of parameters and activations; gradients are added up, and master parameters kept, in
            at least float32.
        stage_layers: layers of each stage of a pipeline, a list for each number of stages that is not to have
            them shared out by what they cost, such as `[[6, 5, 5], [9, 7]]`.
        frozen: patterns of parameters that are not trained, by their names in `model.safetensors`, such
            as `model.embed_tokens.*`; they have neither gradients nor optimizer state.
        evaluate_every: iterations from one evaluation on the held-out sequences (`data.held_out`) to the
            next; there is one after the last iteration too; 0 or absent for none.
        timeout_s: how long a process group waits before it gives up, in seconds.
        trace_step: the iteration whose timeline is exported, counted from 1, or the last of a shorter run;
            0 or absent for none.
    """

    steps: int | None = None
    epochs: int | None = None
    seed: int = 0
    device: DeviceKind = "auto"
    attention: AttentionKind = "auto"
    deterministic: bool = False
    dtype: Literal["bfloat16", "float32", "float64"] = "float32"
    stage_layers: tuple[tuple[int, ...], ...] = ()
    frozen: tuple[str, ...] = ()
    evaluate_every: int | None = None
    timeout_s: float = 600.0
    trace_step: int | None = None

    def __post_init__(self) -> None:
        if self.steps is None and self.epochs is None:
            message = (
                "train.steps and train.epochs are absent: one of them sets the length of the run; set one"
            )
            raise InvalidInputError(message, code="config_value")
        for name, length in (("steps", self.steps), ("epochs", self.epochs)):
            if length is not None:
                check_at_least(f"train.{name}", length, 1)
        check_at_least("train.seed", self.seed, 0)
        for i, pattern in enumerate(self.frozen):
            check_not_empty(f"train.frozen[{i}]", pattern)
        for name in ("evaluate_every", "trace_step"):
            step = getattr(self, name)
            if step is not None:
                check_at_least(f"train.{name}", step, 0)
                # So that a file's can be taken back.
                object.__setattr__(self, name, step or None)
        check_above("train.timeout_s", self.timeout_s, 0)

    @property
    def num_steps(self) -> int:
        """The number of iterations; of a run that epochs end it is known once its data is (`with_steps`)."""
        assert self.steps is not None, "with_steps comes first"
        return self.steps
