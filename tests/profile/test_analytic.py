"""The core's memory formulas against the counted bytes of a stage."""

import json
import math
from typing import Any, get_args

import pytest
import torch

from hydraulis import Cluster, CostProfile
from hydraulis._core import Scheme
from hydraulis.config.kinds import CheckpointingKind
from hydraulis.config.lora import TARGETS, Adapters
from hydraulis.model.parameters import parameter_rows
from hydraulis.planner.model_shape import build_model_shape
from hydraulis.runtime.state.local_shard import LocalShard
from hydraulis.runtime.state.parameters import ModelParameters
from small_model import small_config
from stage_bytes import stage_bytes

SHAPE = {"hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 4, "head_dim": 12}


def analytic_entry(scheme: str, adapters: Adapters | None = None) -> dict[str, Any]:
    shape = build_model_shape(small_config(**SHAPE, adapters=adapters))
    profile = CostProfile.analytic(shape, Cluster(8, 8), "cpu", checkpointing=get_args(CheckpointingKind))
    document = json.loads(profile.to_json())
    return next(entry for entry in document["schemes"] if entry["scheme"] == scheme)


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_activations_are_the_bytes_that_a_stage_saves_for_backward(checkpointing: CheckpointingKind) -> None:
    def kept(kind: CheckpointingKind) -> float:
        few, many = (stage_bytes(tokens, torch.float32, kind, **SHAPE) for tokens in (128, 384))
        return (many - few) / 256

    # In a backward one layer is there as it is without checkpointing.
    held = kept(checkpointing) + (kept("none") - kept(checkpointing)) / SHAPE["num_hidden_layers"]
    predicted = analytic_entry(str(Scheme("<1>").with_checkpointing(checkpointing)))[
        "activation_bytes_per_token"
    ]
    # Beside that a stage keeps ids, targets and positions: some numbers a token, whatever the model's size.
    assert 0 <= held - predicted <= 128


@pytest.mark.parametrize("scheme", ["<1>", "<tp2>", "<pp2>", "<tp2,pp2>"])
def test_resident_bytes_are_those_of_the_buffers(scheme: str) -> None:
    config = small_config(**SHAPE)
    buffers = LocalShard(ModelParameters.from_config(config), [Scheme(scheme)], torch.float32)
    # On a last stage the loss keeps the gradient of the head beside them.
    head = 4 * config.vocab_size * config.hidden_size // Scheme(scheme).tp
    held = buffers.parameter.nbytes + buffers.gradient.nbytes
    predicted = analytic_entry(scheme)["resident_bytes"]
    if Scheme(scheme).pp == 1:
        assert predicted == pytest.approx(held + head, rel=0.02)
    else:
        assert predicted == pytest.approx([held, held + head], rel=0.02)


@pytest.mark.parametrize("is_measured", [False, True])
def test_no_stage_of_a_split_holds_more_than_its_resident_bytes(*, is_measured: bool) -> None:
    """Every rank's buffers have the size of the longest stage, whatever its own stage has."""
    config = small_config(**SHAPE | {"num_hidden_layers": 16})
    parameters, usual = ModelParameters.from_config(config), Scheme("<pp4>")
    profile = CostProfile.analytic(build_model_shape(config), Cluster(4, 4), "cpu")
    if is_measured:
        # A measured profile states the buffers of the usual split, and nothing that is rounded.
        document = json.loads(profile.to_json())
        bytes_of = LocalShard(parameters, [usual], torch.float32).bytes_of(usual)
        document["schemes"] = [
            entry | {"resident_bytes": [bytes_of] * 4}
            for entry in document["schemes"]
            if entry["scheme"] == str(usual)
        ]
        profile = CostProfile.from_json(json.dumps(document))
    entries = {
        Scheme(entry["scheme"]): entry["resident_bytes"]
        for entry in json.loads(profile.with_layer_splits(3).to_json())["schemes"]
    }
    splits = [scheme for scheme in entries if scheme.split and scheme.pp == 4]
    assert len(splits) >= 6
    shard = LocalShard(parameters, splits, torch.float32)
    for scheme in splits:
        assert min(entries[scheme]) >= shard.bytes_of(scheme)


def test_resident_bytes_of_adapters_are_those_of_the_buffers() -> None:
    adapters = Adapters(rank=4, alpha=8.0, targets=TARGETS)
    config = small_config(**SHAPE, adapters=adapters)
    buffers = LocalShard(ModelParameters.from_config(config), [Scheme("<1>")], torch.float32)
    held = buffers.parameter.nbytes + buffers.gradient.nbytes
    # A frozen layer leaves its owners beyond the gradient buffer, which is that of the adapters.
    trained = ModelParameters.from_config(config).elements.trained
    layer = sum(math.prod(row.shape) for row in parameter_rows(config.base) if row.parts == ("layer",))
    in_transfer = 4 * (layer - trained)
    assert analytic_entry("<1>", adapters)["resident_bytes"] == pytest.approx(held + in_transfer, rel=0.02)
