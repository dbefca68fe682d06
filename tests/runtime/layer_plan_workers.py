"""Functions that the ranks of test_layer_plans.py run."""

import json
from typing import Any, NamedTuple, get_args

import torch.distributed as dist

from hydraulis import CostProfile, Scheme
from hydraulis.config.kinds import CheckpointingKind
from hydraulis.planner.model_shape import build_model_shape
from hydraulis.profile.bench import SchemeBench
from hydraulis.runtime.worker import Worker
from profiles import made_up_profile
from runtime.tiny import make_worker
from small_model import small_config

# Five layers: two stages of unequal length, and three.
PIPELINES = ("<1>", "<tp2>", "<pp2>", "<pp3>", "<tp2,pp2>")


class SavedByKind(NamedTuple):
    """Bytes per token that a rank saves under one layer plan.

    Attributes:
        scheme: Scheme with the layer plan.
        counted: Bytes counted on this rank.
        derived: Bytes that a profile of both kinds derives for the rank's stage.
        counted_on_host: Bytes of host memory counted on this rank.
        derived_on_host: Bytes of host memory that the profile derives.
    """

    scheme: str
    counted: float
    derived: float
    counted_on_host: float
    derived_on_host: float


def saved_by_layer_plans() -> list[SavedByKind]:
    """Return this rank's bytes under layer plans between each two kinds, for each scheme of `PIPELINES`."""
    config = small_config(num_hidden_layers=5, vocab_size=8)
    worker = make_worker([f"1x{text}" for text in PIPELINES], config=config)
    found = []
    for text in PIPELINES:
        bytes_of = {
            kind: _stage_bytes(worker, Scheme(text).with_checkpointing(kind))
            for kind in get_args(CheckpointingKind)
        }
        derived = _profile(worker, bytes_of, text).with_layer_plans(3)
        for entry in json.loads(derived.to_json())["schemes"][len(bytes_of) :]:
            bench = SchemeBench(worker, Scheme(entry["scheme"]), None)
            counted = bench.saved_bytes(64)
            if bench.position is not None:
                derived_bytes, derived_on_host = (
                    _of_stage(entry.get(field, 0.0), bench.position.stage)
                    for field in ("activation_bytes_per_token", "host_bytes_per_token")
                )
                found.append(
                    SavedByKind(
                        entry["scheme"],
                        counted.per_token,
                        derived_bytes,
                        counted.host_per_token,
                        derived_on_host,
                    )
                )
    return found


def _of_stage(figures: float | list[float], stage: int) -> float:
    return figures[stage] if isinstance(figures, list) else figures


def _stage_bytes(worker: Worker, scheme: Scheme) -> list[tuple[float, float]]:
    """Return the bytes per token of each stage's fullest rank and its bytes of host memory, on every rank."""
    bench = SchemeBench(worker, scheme, None)
    stage = None if bench.position is None else bench.position.stage
    pairs: list[Any] = [None] * dist.get_world_size()
    saved = bench.saved_bytes(64)
    dist.all_gather_object(pairs, (stage, (saved.per_token, saved.host_per_token)))
    return [max(count for at, count in pairs if at == stage) for stage in range(scheme.pp)]


def _profile(
    worker: Worker, bytes_of: dict[CheckpointingKind, list[tuple[float, float]]], text: str
) -> CostProfile:
    """Return a profile of one scheme under each kind, with these bytes and made-up times."""
    schemes = {kind: Scheme(text).with_checkpointing(kind) for kind in bytes_of}
    document = json.loads(made_up_profile({str(scheme): 64 for scheme in schemes.values()}).to_json())
    document["model"] = json.loads(build_model_shape(worker.parameters.config).to_json())
    document["dtype"] = str(worker.local_shard.parameter.dtype).removeprefix("torch.")
    for entry, (kind, pairs) in zip(document["schemes"], bytes_of.items(), strict=True):
        on_device, on_host = ([pair[at] for pair in pairs] for at in (0, 1))
        entry["activation_bytes_per_token"] = on_device if len(pairs) > 1 else on_device[0]
        if "offload" in kind:
            entry["host_bytes_per_token"] = on_host if len(pairs) > 1 else on_host[0]
    return CostProfile.from_json(json.dumps(document))
