"""Puts what was measured into the cost profile's JSON form."""

import json
import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hydraulis._core import CostProfile, Scheme
from hydraulis.config.checkpointing import CheckpointingKind
from hydraulis.config.context import ContextKind

# A cap is a multiple of the ranks that share tokens out, so that padding never exceeds it, and of 64, to be
# readable.
CAP_MULTIPLE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMeasurement:
    """Bytes of one scheme.

    Attributes:
        held_bytes: parameters and gradients of the fullest stage, and what backward needs beside them
            whatever the tokens.
        activation_bytes_per_token: what the fullest stage keeps at its worst moment.
    """

    held_bytes: int
    activation_bytes_per_token: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeMeasurement:
    """Fitted coefficients of one scheme, as the cost profile defines them."""

    quadratic_ms_per_token2: float
    linear_ms_per_token: float
    fixed_ms: float
    stage_multipliers: Sequence[float]


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
    memory: dict[Scheme, MemoryMeasurement],
    times: dict[Scheme, TimeMeasurement],
    forward_share: float,
    context: ContextKind,
    checkpointing: CheckpointingKind,
) -> CostProfile:
    """Build the profile; the core checks it.

    Args:
        model: bytes that do not depend on the scheme.
        memory: of each scheme.
        times: of each scheme.
        forward_share: of a micro-batch's time.
        context: the kind of context parallelism of all schemes that have any.
        checkpointing: the kind under which all was measured.

    Raises:
        InvalidInputError: a measurement is out of its range (code `profile_value`).
    """
    entries = [
        {
            "scheme": str(scheme),
            "quadratic_ms_per_token2": times[scheme].quadratic_ms_per_token2,
            "linear_ms_per_token": times[scheme].linear_ms_per_token,
            "fixed_ms": times[scheme].fixed_ms,
            "held_bytes": memory[scheme].held_bytes,
            "activation_bytes_per_token": memory[scheme].activation_bytes_per_token,
            "stage_multipliers": list(times[scheme].stage_multipliers),
        }
        | ({"context": context} if scheme.cp > 1 else {})
        for scheme in times
    ]
    document = {
        "format": "hydraulis.cost-profile/1",
        "name": "measured",
        "source": f"measured by this run: CPU time of one rank, torch {torch.__version__}",
        "hardware": {
            "device": f"{platform.machine()} CPU",
            "gpus_per_node": torch.distributed.get_world_size(),
            "memory_bytes": model.memory_bytes,
        },
        "checkpointing": checkpointing,
        "forward_share": forward_share,
        "memory": {
            "reserved_bytes": model.reserved_bytes,
            "home_bytes": model.home_bytes,
            "token_multiple": math.lcm(CAP_MULTIPLE, *(scheme.tp * scheme.cp for scheme in times)),
        },
        "schemes": entries,
    }
    return CostProfile.from_json(json.dumps(document))
