"""Puts what was measured into the cost profile's JSON form."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch

from hydraulis._core import CostFit, CostProfile, LayerSplit, ModelShape, Scheme
from hydraulis.config.kinds import ContextKind

# A cap is a multiple of the ranks that share tokens out, so that padding never exceeds it, and of 64, to be
# readable.
CAP_MULTIPLE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMeasurement:
    """Bytes of one scheme's ranks, by stage.

    Attributes:
        held_bytes: parameters and gradients, and what backward needs beside them whatever the tokens.
        activation_bytes_per_token: what the stage keeps at its worst moment.
        stage_home_bytes: the home state of the stage's parameters, of all its ranks together.
    """

    held_bytes: Sequence[int]
    activation_bytes_per_token: Sequence[float]
    stage_home_bytes: Sequence[int]

    def entry(self) -> dict[str, object]:
        """Give the fields of a scheme's entry: each stage's figures, of a single stage a number."""
        fields = {
            "held_bytes": self.held_bytes,
            "activation_bytes_per_token": self.activation_bytes_per_token,
        }
        if len(self.held_bytes) == 1:
            return {name: figures[0] for name, figures in fields.items()}
        fields["stage_home_bytes"] = self.stage_home_bytes
        return {name: list(figures) for name, figures in fields.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeMeasurement:
    """Fitted coefficients of one scheme, as the cost profile defines them.

    Attributes:
        quadratic_ms_per_token2: `a`.
        linear_ms_per_token: `b`.
        fixed_ms: `c`.
        forward_share: the forward pass's share of these.
        stage_multipliers: by stage.
        quality: how far they can be trusted, as the profile's `fit`; None where nobody knows.
    """

    quadratic_ms_per_token2: float
    linear_ms_per_token: float
    fixed_ms: float
    forward_share: float
    stage_multipliers: Sequence[float]
    quality: Mapping[str, object] | None = None

    @classmethod
    def of(cls, fit: CostFit, forward_share: float, stage_multipliers: Sequence[float]) -> Self:
        """Take what was fitted."""
        return cls(
            quadratic_ms_per_token2=fit.quadratic_ms_per_token2,
            linear_ms_per_token=fit.linear_ms_per_token,
            fixed_ms=fit.fixed_ms,
            forward_share=forward_share,
            stage_multipliers=stage_multipliers,
            quality=json.loads(fit.quality_json()),
        )

    def entry(self) -> dict[str, object]:
        """Give the fields of a scheme's entry."""
        fields: dict[str, object] = {
            "quadratic_ms_per_token2": self.quadratic_ms_per_token2,
            "linear_ms_per_token": self.linear_ms_per_token,
            "fixed_ms": self.fixed_ms,
            "forward_share": self.forward_share,
            "stage_multipliers": list(self.stage_multipliers),
        }
        return fields if self.quality is None else fields | {"fit": self.quality}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What was measured, whatever the scheme.

    Attributes:
        model: its shape.
        split: of its layers over stages.
        dtype: of parameters and activations.
        context: the kind of context parallelism of all schemes that have any.
        gpus_per_node: ranks of a node.
        attention: the kernel that was used, in words.
        device: that a rank computed on, in words.
        clock: whose time it is, in words.
    """

    model: ModelShape
    split: LayerSplit
    dtype: str
    context: ContextKind
    gpus_per_node: int
    attention: str
    device: str
    clock: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMemory:
    """Bytes that do not depend on the scheme.

    Attributes:
        memory_bytes: of a rank.
        reserved_bytes: of a rank's transfer buffers.
        home_bytes: master parameters, their gradients and moments, of the whole model.
    """

    memory_bytes: int
    reserved_bytes: int
    home_bytes: int


def cost_profile(
    model: ModelMemory,
    memory: Mapping[Scheme, MemoryMeasurement],
    times: Mapping[Scheme, TimeMeasurement],
    workload: Workload,
) -> CostProfile:
    """Build the profile; the core checks it.

    Args:
        model: bytes that do not depend on the scheme.
        memory: of each scheme.
        times: of each scheme.
        workload: what was measured.

    Raises:
        InvalidInputError: a measurement is out of its range (code `profile_invalid`).
    """
    entries = [
        {"scheme": str(scheme)}
        | memory[scheme].entry()
        | times[scheme].entry()
        | ({"context": workload.context} if scheme.cp > 1 else {})
        | ({"stage_layers": workload.split.stage_layers(scheme)} if scheme.pp > 1 else {})
        for scheme in times
    ]
    document = {
        "format": "hydraulis.cost-profile/1",
        "name": _name(workload),
        "source": f"measured by this run: {workload.clock} of one rank, torch {torch.__version__}",
        "hardware": {
            "device": workload.device,
            "gpus_per_node": workload.gpus_per_node,
            "memory_bytes": model.memory_bytes,
        },
        "model": json.loads(workload.model.to_json()),
        "dtype": workload.dtype,
        "attention": workload.attention,
        "memory": {
            "reserved_bytes": model.reserved_bytes,
            "home_bytes": model.home_bytes,
            "token_multiple": math.lcm(CAP_MULTIPLE, *(scheme.tp * scheme.cp for scheme in times)),
        },
        "schemes": entries,
    }
    return CostProfile.from_json(json.dumps(document))


def _name(workload: Workload) -> str:
    """Say of what model and device it is, as plans tell; a run's model has no name of its own."""
    model = json.loads(workload.model.to_json())
    layers, hidden = model["num_hidden_layers"], model["hidden_size"]
    return f"measured-{layers}x{hidden}-{workload.device}".replace(" ", "-")
