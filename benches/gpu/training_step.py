"""One training step of one model, by Hydraulis, by transformers and in torchtitan's form, on one batch.

Transformers runs its own model code, packed without padding: it is given Hydraulis's attention kernel, so the
two differ in everything else alone. By autocast its parameters stay in float32, as master parameters do here;
the other way everything, its optimizer's state too, is in half precision, which computes something else and
shows what that would save.
"""

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import torch
import transformers
from benches.gpu.compiled_form import CompiledDecoder
from benches.gpu.workload import Clock
from torch import Tensor

from hydraulis import Cluster, CostProfile, Plan, Planner, Scheme
from hydraulis.config.hugging_face.write import to_hugging_face
from hydraulis.config.kinds import CheckpointingKind
from hydraulis.config.model import ModelConfig
from hydraulis.config.optimizer import OptimizerConfig
from hydraulis.config.train import TrainConfig
from hydraulis.data.collate import PackedMicroBatch, collate
from hydraulis.model.attention.varlen import varlen_attention
from hydraulis.model.flops import training_flops
from hydraulis.model.parameters import checkpoint_name
from hydraulis.model.sequences import PackedSequences
from hydraulis.runtime.ranks.distributed import joined
from hydraulis.runtime.state.parameters import InitialValues, ModelParameters
from hydraulis.runtime.step import train_step
from hydraulis.runtime.worker import Worker

SEED = 0
PACKED = "hydraulis_packed"
OPTIMIZER = OptimizerConfig(learning_rate=1e-4)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSetting:
    """The model and the batch.

    Attributes:
        device: Device of both ways.
        dtype: Number type of computation.
        model: Shape of the model.
        micro_batches: Lengths of the sequences of each micro-batch.
        checkpointing: Kind for Hydraulis; transformers has its own kind where this one is not `none`.
    """

    device: torch.device
    dtype: torch.dtype
    model: ModelConfig
    micro_batches: list[list[int]]
    checkpointing: CheckpointingKind

    @property
    def scheme(self) -> Scheme:
        """Of the one replica."""
        return Scheme("<1>").with_checkpointing(self.checkpointing)

    @property
    def lengths(self) -> list[int]:
        """Lengths of all sequences."""
        return [length for micro_batch in self.micro_batches for length in micro_batch]

    @property
    def squares(self) -> int:
        """The sum of the squared lengths."""
        return sum(length**2 for length in self.lengths)

    def sequence(self, number: int) -> Any:
        """Give the tokens of a sequence."""
        return np.random.default_rng(number).integers(self.model.vocab_size, size=self.lengths[number])


# A context in which a step can be computed; the step returns its loss.
Way = Callable[[StepSetting], AbstractContextManager[Callable[[], float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """What a step takes by one way.

    Attributes:
        way: Name of the way.
        step_ms: Median time of a step with the optimizer's.
        tokens_per_s: Tokens of the batch per second.
        tflops: Rate of the operations that the model needs, attention's by the sum of squared lengths.
        mfu: Share of the device's peak; None if the peak is not known.
        memory_bytes: Peak of the allocator; 0 on the CPU.
        first_loss: Loss before any update, which all ways share.
        refusal: Reason why it was not measured, such as too little memory; None if it was.
    """

    way: str
    step_ms: float = 0.0
    tokens_per_s: float = 0.0
    tflops: float = 0.0
    mfu: float | None = None
    memory_bytes: int = 0
    first_loss: float = 0.0
    refusal: str | None = None


def measure_steps(setting: StepSetting, clock: Clock, peak_tflops: float | None) -> Iterator[StepRow]:
    """Time a step by each way, one after another, each alone on the device."""
    for name, way in ways(setting).items():
        yield _measure(name, way, setting, clock, peak_tflops)


def ways(setting: StepSetting) -> dict[str, Way]:
    """Return the ways to compute the step, by name."""
    found: dict[str, Way] = {"hydraulis": partial(_hydraulis, compiles=False)}
    if setting.device.type == "cuda":
        found["hydraulis, compiled"] = partial(_hydraulis, compiles=True)
    if setting.dtype == torch.float32:
        found["transformers"] = partial(_transformers, torch.float32)
    else:
        found["transformers, autocast"] = partial(_transformers, torch.float32)
        found["transformers, all in half precision"] = partial(_transformers, setting.dtype)
    found["torchtitan's form"] = _compiled
    return found


def _measure(
    name: str,
    way: Way,
    setting: StepSetting,
    clock: Clock,
    peak_tflops: float | None,
) -> StepRow:
    """Time a step by one way; a way that fails is a row too, so that the others are measured."""
    _forget(setting.device)
    try:
        with way(setting) as step:
            first_loss = step()
            step_ms = clock.median_ms(step)
            memory = torch.cuda.max_memory_allocated(setting.device) if setting.device.type == "cuda" else 0
    except Exception as error:
        return StepRow(way=name, refusal=f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}")
    tflops = training_flops(setting.model, sum(setting.lengths), setting.squares) / step_ms / 1e9
    return StepRow(
        way=name,
        step_ms=step_ms,
        tokens_per_s=1e3 * sum(setting.lengths) / step_ms,
        tflops=tflops,
        mfu=None if peak_tflops is None else tflops / peak_tflops,
        memory_bytes=memory,
        first_loss=first_loss,
    )


def _forget(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


@contextmanager
def _hydraulis(setting: StepSetting, *, compiles: bool) -> Iterator[Callable[[], float]]:
    """A rank alone, by plans as in training; `compiles` is `train.compile`."""
    with joined(timedelta(minutes=5), setting.device):
        train = TrainConfig(
            steps=1_000,
            seed=SEED,
            device="cuda" if setting.device.type == "cuda" else "cpu",
            dtype=str(setting.dtype).removeprefix("torch."),  # type: ignore[arg-type]
            compile=compiles,
        )
        worker = Worker(setting.model, OPTIMIZER, train, schemes=[setting.scheme])
        plan = _plan(setting)

        def step() -> float:
            return train_step(worker, plan, setting.sequence).loss

        yield step


def _plan(setting: StepSetting) -> Plan:
    """Plan the batch on one GPU that admits the largest of the micro-batches, and 1 % more.

    The drawn micro-batches are full. Without the extra 1 %, tokens that fit into none of them would need a
    further micro-batch.
    """
    cap = int(1.01 * max(sum(micro_batch) for micro_batch in setting.micro_batches))
    document = {
        "format": "hydraulis.cost-profile/2",
        "name": "made up",
        "source": "for a plan of one replica, which no time decides",
        "hardware": {"device": "one", "gpus_per_node": 1, "memory_bytes": cap + 1},
        "memory": {"reserved_bytes": 0, "optimizer_bytes": 0, "token_multiple": 1},
        "schemes": [
            {
                "scheme": str(setting.scheme),
                "quadratic_ms_per_token2": 1e-8,
                "linear_ms_per_token": 1e-3,
                "fixed_ms": 1.0,
                "forward_share": 1 / 3,
                "resident_bytes": 0,
                "activation_bytes_per_token": 1.0,
            }
        ],
    }
    profile = CostProfile.from_json(json.dumps(document))
    planner = Planner(profile, Cluster(1, 1), strategies=[f"1x{setting.scheme}"])
    return planner.plan(setting.lengths, [length - 1 for length in setting.lengths])


@contextmanager
def _transformers(parameter_dtype: torch.dtype, setting: StepSetting) -> Iterator[Callable[[], float]]:
    """A model of transformers over the same micro-batches, with torch's fused AdamW."""
    model = _hugging_face_model(setting, parameter_dtype)
    adamw = torch.optim.AdamW(model.parameters(), lr=OPTIMIZER.learning_rate, fused=True)
    num_targets = sum(length - 1 for length in setting.lengths)
    autocast: AbstractContextManager[Any] = nullcontext()
    if parameter_dtype != setting.dtype:
        autocast = torch.autocast(setting.device.type, setting.dtype)

    def step() -> float:
        total = torch.zeros((), device=setting.device)
        for batch in _packed(setting):
            with autocast:
                loss = model(**_arguments(batch, num_targets)).loss
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIMIZER.clip_norm)
        adamw.step()
        adamw.zero_grad()
        return float(total)

    yield step


@contextmanager
def _compiled(setting: StepSetting) -> Iterator[Callable[[], float]]:
    """A decoder in torchtitan's form over the same micro-batches; on the CPU compiled into plain torch."""
    backend = "inductor" if setting.device.type == "cuda" else "eager"
    with torch.device(setting.device):
        model = CompiledDecoder(setting.model, backend)
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in _initial_values(setting.model):
            own[name].copy_(value)
    adamw = torch.optim.AdamW(model.parameters(), lr=OPTIMIZER.learning_rate, fused=True)
    num_targets = sum(length - 1 for length in setting.lengths)
    half = setting.dtype != torch.float32

    def step() -> float:
        total = torch.zeros((), device=setting.device)
        for batch in _packed(setting):
            assert isinstance(batch.sequences, PackedSequences)
            where = batch.sequences.position_T, batch.sequences.segments
            with torch.autocast(setting.device.type, setting.dtype, enabled=half):
                loss = model(batch.token_t, batch.target_t, *where) / num_targets
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIMIZER.clip_norm)
        adamw.step()
        adamw.zero_grad()
        return float(total)

    yield step


def _initial_values(config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """Yield each parameter's name with the value from which the run starts."""
    parameters = ModelParameters.from_config(config)
    source = InitialValues(parameters, SEED, torch.float32)
    for name, shape in parameters.shapes.items():
        yield name, parameters.view(source.read(name, 0, shape.numel()), name)


def _packed(setting: StepSetting) -> Iterator[PackedMicroBatch]:
    first = 0
    for lengths in setting.micro_batches:
        documents = [setting.sequence(first + place) for place in range(len(lengths))]
        first += len(lengths)
        yield collate(documents, multiple=1, device=setting.device)


def _arguments(batch: PackedMicroBatch, num_targets: int) -> dict[str, Any]:
    assert isinstance(batch.sequences, PackedSequences)
    return {
        "input_ids": batch.token_t[None],
        "position_ids": batch.sequences.position_T[None],
        "labels": batch.token_t[None],
        "shift_labels": batch.target_t[None],
        "num_items_in_batch": num_targets,
        "segments": batch.sequences.segments,
        "use_cache": False,
    }


def _hugging_face_model(setting: StepSetting, dtype: torch.dtype) -> Any:
    """Make the model with the parameters that Hydraulis draws."""
    transformers.AttentionInterface.register(PACKED, _attend)
    transformers.AttentionMaskInterface.register(PACKED, lambda *_, **__: None)
    fields = to_hugging_face(setting.model, max(setting.lengths))
    config = transformers.AutoConfig.for_model(**fields)
    from_config: Callable[..., Any] = transformers.AutoModelForCausalLM.from_config
    with torch.device(setting.device):
        model = from_config(config, attn_implementation=PACKED, dtype=dtype)
    own = model.state_dict()
    for name, value in _initial_values(setting.model):
        own[checkpoint_name(name)].copy_(value)
    if setting.checkpointing != "none":
        # Its new name since transformers 5.23, where the old name warns.
        getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    model.train()
    return model


def _attend(
    _module: torch.nn.Module, q_1NTD: Tensor, k_1KTD: Tensor, v_1KTD: Tensor, _mask: None, **facts: Any
) -> tuple[Tensor, None]:
    """Attend for transformers by Hydraulis's kernel."""
    # By autocast rotary positions make queries and keys wide again.
    q_TND, k_TKD, v_TKD = (x[0].transpose(0, 1).to(v_1KTD.dtype) for x in (q_1NTD, k_1KTD, v_1KTD))
    return varlen_attention(q_TND, k_TKD, v_TKD, facts["segments"])[None], None
