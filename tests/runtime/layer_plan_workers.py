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
    """

    scheme: str
    counted: float
    derived: float


def saved_by_layer_plans() -> list[SavedByKind]:
    """Return this rank's bytes under layer plans between each two kinds, for each scheme of `PIPELINES`."""
    config = small_config(num_hidden_layers=5, vocab_size=8)
    worker = make_worker([f"1x{text}" for text in PIPELINES], config=config)
    found = []
    for text in PIPELINES:
        bytes_of = {
            kind: _stage_bytes(worker, Scheme(text).under(kind)) for kind in get_args(CheckpointingKind)
        }
        derived = _profile(worker, bytes_of, text).with_layer_plans(3)
        for entry in json.loads(derived.to_json())["schemes"][len(bytes_of) :]:
            bench = SchemeBench(worker, Scheme(entry["scheme"]), None)
            counted = bench.saved_bytes(64).per_token
            if bench.position is not None:
                stages = entry["activation_bytes_per_token"]
                expected = stages[bench.position.stage] if isinstance(stages, list) else stages
                found.append(SavedByKind(entry["scheme"], counted, expected))
    return found


def _stage_bytes(worker: Worker, scheme: Scheme) -> list[float]:
    """Return the bytes per token of each stage's fullest rank, on every rank."""
    bench = SchemeBench(worker, scheme, None)
    stage = None if bench.position is None else bench.position.stage
    pairs: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(pairs, (stage, bench.saved_bytes(64).per_token))
    return [max(count for at, count in pairs if at == stage) for stage in range(scheme.pp)]


def _profile(worker: Worker, bytes_of: dict[CheckpointingKind, list[float]], text: str) -> CostProfile:
    """Return a profile of one scheme under each kind, with these bytes and made-up times."""
    schemes = {kind: Scheme(text).under(kind) for kind in bytes_of}
    document = json.loads(made_up_profile({str(scheme): 64 for scheme in schemes.values()}).to_json())
    document["model"] = json.loads(build_model_shape(worker.parameters.config).to_json())
    for entry, stages in zip(document["schemes"], bytes_of.values(), strict=True):
        entry["activation_bytes_per_token"] = stages if len(stages) > 1 else stages[0]
    return CostProfile.from_json(json.dumps(document))
