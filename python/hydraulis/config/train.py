"""The section `train`: the length of a run and its computation."""

import dataclasses
from typing import Literal

from hydraulis.config.check import check_above, check_at_least, check_not_empty
from hydraulis.config.kinds import AttentionKind, DeviceKind, ShardingKind
from hydraulis.errors import InvalidInputError

# Three years: longer times do not fit into the clocks of all libraries.
_MOST_S = 1e8
# NCCL rounds the channels of point-to-point operations up to a power of two, and has at most 32 for them
# (ncclTopoComputeP2pChannels in graph/paths.cc).
_CHANNELS = (1, 2, 4, 8, 16, 32)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """The length of a run, its device and its numerics.

    Attributes:
        steps: Number of iterations.
        epochs: Number of passes over the data; the last batch has the rest of the last epoch, or is left out
            with `data.epoch_end = "drop"`. At least one of `steps` and `epochs` is set; with both, the run
            ends at whichever comes first.
        seed: Seed of the initial weights and of the order of documents.
        device: Device of the ranks: `cpu`, `cuda` with one device for each rank of a node, or `auto`, which
            is `cuda` if available.
        attention: Attention kernel: `auto` for the fastest that the device and the type allow, or
            `flash-attn-3`, `flash-attn-4`, `flash-attn`, `torch-flash`, `plain` or `cpu-flash`.
        deterministic: Whether to avoid CUDA kernels whose results differ from run to run by rounding, at
            some cost in speed; the CPU has no such kernels.
        dtype: Type of parameters and activations: `auto` is `bfloat16` with `device = "cuda"` and `float32`
            otherwise. Gradients are accumulated, and master parameters kept, in at least float32.
        compile: Whether Triton kernels compute rotations, residual sums with their norms, the MLP's gated
            product, the embedding's gradient, the loss and the rounding to float8. Needs CUDA devices and
            Triton. If absent, they do with `device = "cuda"`.
        float8: Whether the linear maps of the layers multiply in float8 (e4m3, a scale for each row), on
            CUDA devices of capability 8.9 or later; needs `dtype` `bfloat16`. The CPU emulates it. The
            weights' gradients, the head and maps with a dimension that is no multiple of 16 keep `dtype`.
        float8_messages: Whether hidden states and their gradients travel between pipeline stages in float8
            (e4m3, a scale for each token): half the bytes of bfloat16, with a rounding that no single stage
            has.
        symmetric_memory: Whether tensor ranks of a node exchange through memory that their CUDA devices
            share, by copies instead of NCCL's kernels. Each rank then has a buffer of 64 MiB for each tensor
            degree that divides a node.
        sharding: Tensors that a rank holds for two layer groups at a time, in place of its whole stage:
            `none`; `gradients`, which then leave for their owners after each micro-batch; or `parameters`
            with gradients, which then come from their owners for each forward and each backward. Schemes
            have no pipeline stages under the last two.
        stage_layers: Layers of each pipeline stage, one list for each number of stages whose layers are not
            assigned by cost, such as `[[6, 5, 5], [9, 7]]`.
        frozen: Patterns of parameters that are not trained, by their names in `model.safetensors`, such as
            `model.embed_tokens.*`; they have neither gradients nor optimizer state.
        evaluate_every: Iterations between two evaluations on held-out sequences (`data.held_out` or
            `data.validation`); one more follows the last iteration. 0 or absent for none.
        evaluate_sequences: Most sequences of each source in an evaluation, evenly spread over it; 0 or absent
            for all.
        timeout_s: Seconds after which a rank that does not take part in an exchange is lost; also the most
            time in which all ranks join.
        start_timeout_s: Most seconds in which all ranks join, in place of `timeout_s`; absent for no limit of
            its own.
        step_timeout_s: Seconds after which a step, without its checkpoint, is the loss of a rank; absent for
            no limit of its own.
        silence_s: Seconds without a sign of life after which a rank is lost, such as a stopped process.
        exchange_channels: Most channels of an NCCL communicator that exchanges parameters and gradients: 1,
            2, 4, 8, 16 or 32. Each takes a multiprocessor while an exchange waits, and memory for each rank.
        stage_channels: The same for the communicators of tensor and context parallelism, and for messages
            between pipeline stages.
        loss_jump: Factor over the median loss of the 32 steps before above which a loss is a jump; 0 for no
            check.
        norm_jump: The same factor for the gradient norm.
        on_jump: Reaction to a jump: `report` it, `skip` the update too, or `stop` the run before the update.
        trace_step: Iteration whose timeline is exported, counted from 1; a shorter run exports its last one.
            0 or absent for none.
        profile_steps: Iterations whose operations torch's profiler records on every rank, counted from 1;
            they take longer, by the time of the profiler itself.
    """

    steps: int | None = None
    epochs: int | None = None
    seed: int = 0
    device: DeviceKind = "auto"
    attention: AttentionKind = "auto"
    deterministic: bool = False
    dtype: Literal["auto", "bfloat16", "float32", "float64"] = "auto"
    compile: bool | None = None
    float8: bool = False
    float8_messages: bool = False
    symmetric_memory: bool = False
    sharding: ShardingKind = "none"
    stage_layers: tuple[tuple[int, ...], ...] = ()
    frozen: tuple[str, ...] = ()
    evaluate_every: int | None = None
    evaluate_sequences: int | None = None
    timeout_s: float = 600.0
    start_timeout_s: float | None = None
    step_timeout_s: float | None = None
    silence_s: float = 60.0
    exchange_channels: int = 8
    stage_channels: int = 16
    loss_jump: float = 2.0
    norm_jump: float = 10.0
    on_jump: Literal["report", "skip", "stop"] = "report"
    trace_step: int | None = None
    profile_steps: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self._check_length()
        if self.dtype == "auto":
            object.__setattr__(self, "dtype", "bfloat16" if self.device == "cuda" else "float32")
        if self.compile is None:
            object.__setattr__(self, "compile", self.device == "cuda")
        if self.float8 and self.dtype != "bfloat16":
            message = (
                f"train.float8 = true needs train.dtype = 'bfloat16', and it is '{self.dtype}': set it, or "
                "train.float8 = false"
            )
            raise InvalidInputError(message, code="config_value")
        check_at_least("train.seed", self.seed, 0)
        for i, pattern in enumerate(self.frozen):
            check_not_empty(f"train.frozen[{i}]", pattern)
        for name in ("evaluate_every", "evaluate_sequences", "trace_step"):
            number = getattr(self, name)
            if number is not None:
                check_at_least(f"train.{name}", number, 0)
                # 0 cancels the value of a file.
                object.__setattr__(self, name, number or None)
        for i, step in enumerate(self.profile_steps):
            check_at_least(f"train.profile_steps[{i}]", step, 1)
        self._check_limits()

    def _check_limits(self) -> None:
        """Check the factors of jumps, and the times after which a rank is lost."""
        for name, factor in (("loss_jump", self.loss_jump), ("norm_jump", self.norm_jump)):
            if factor:
                check_at_least(f"train.{name}", factor, 1)
        check_above("train.timeout_s", self.timeout_s, 0, _MOST_S)
        if self.start_timeout_s is not None:
            check_above("train.start_timeout_s", self.start_timeout_s, 0, _MOST_S)
        if self.step_timeout_s is not None:
            check_above("train.step_timeout_s", self.step_timeout_s, 0)
        check_above("train.silence_s", self.silence_s, 0, _MOST_S)
        for name in ("exchange_channels", "stage_channels"):
            channels = getattr(self, name)
            if channels not in _CHANNELS:
                message = f"train.{name} = {channels} must be one of {', '.join(map(str, _CHANNELS))}"
                raise InvalidInputError(message, code="config_value")

    def _check_length(self) -> None:
        if self.steps is None and self.epochs is None:
            message = (
                "train.steps and train.epochs are absent: one of them sets the length of the run; set one"
            )
            raise InvalidInputError(message, code="config_value")
        for name, length in (("steps", self.steps), ("epochs", self.epochs)):
            if length is not None:
                check_at_least(f"train.{name}", length, 1)

    @property
    def num_steps(self) -> int:
        """Number of iterations; `with_steps` sets it for a run that is limited by epochs alone."""
        assert self.steps is not None, "with_steps sets steps first"
        return self.steps

    def is_due(self, every: int | None, step: int) -> bool:
        """Return whether an action follows `step`: every `every` steps and after the last; None for never."""
        return every is not None and (step % every == 0 or step == self.num_steps)
