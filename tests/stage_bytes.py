"""Counts the bytes that a whole small model saves for backward."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hydraulis import Scheme
from hydraulis._core import Position
from hydraulis.config.kinds import CheckpointingKind
from hydraulis.data.collate import collate
from hydraulis.parallel.groups import ProcessGroups
from hydraulis.profile.activations import activation_bytes
from hydraulis.runtime.pipeline.stage import Stage, StageKinds
from hydraulis.runtime.state.local_shard import LocalShard
from hydraulis.runtime.state.parameters import ModelParameters
from small_model import small_config

# Kinds of the stage besides its context.
KINDS: dict[str, Any] = {}


def stage_bytes(
    tokens: int | Sequence[int],
    dtype: torch.dtype = torch.float64,
    checkpointing: CheckpointingKind = "none",
    **changes: Any,
) -> int:
    """Count the saved bytes of one sequence, or of several sequences with these lengths."""
    parameters = ModelParameters.from_config(small_config(**changes))
    whole = Position.all(Scheme("<1>").with_checkpointing(checkpointing))[0]
    buffers = LocalShard(parameters, [whole.scheme], dtype)
    buffers.parameter.fill_(0.1)
    groups = ProcessGroups(timeout=None)  # type: ignore[arg-type]
    stage = Stage(whole, StageKinds(context=None, **KINDS), 0, groups, buffers)
    lengths = [tokens] if isinstance(tokens, int) else tokens
    sequences = [np.zeros(length, dtype=np.uint8) for length in lengths]
    return activation_bytes(stage, None, collate(sequences, multiple=1))
