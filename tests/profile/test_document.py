"""What was measured, in the cost profile's JSON form."""

import json
import math
from typing import Any

import pytest
import torch

from hydraulis import Cluster, InvalidInputError, Scheme
from hydraulis.planner.model_shape import build_layer_split, build_model_shape
from hydraulis.profile.document import (
    CAP_MULTIPLE,
    MemoryMeasurement,
    ModelMemory,
    TimeMeasurement,
    Workload,
    cost_profile,
)
from small_model import small_config

MODEL = ModelMemory(memory_bytes=1_000_000, reserved_bytes=20_000, home_bytes=400_000)
TIME: dict[str, Any] = {
    "quadratic_ms_per_token2": 1e-5,
    "linear_ms_per_token": 0.01,
    "fixed_ms": 0.5,
    "forward_share": 0.3,
    "stage_multipliers": [0.9, 1.1],
}
PIPELINE = Scheme("<tp2,pp2,selective>")
SHAPE = build_model_shape(small_config(qk_norm=True))
QUALITY = {
    "points": 8,
    "outliers": 1,
    "relative_error": 0.02,
    "held_out_error": 0.03,
    "range": {"longest_tokens": 64, "micro_batch_tokens": 128},
}


def workload() -> Workload:
    return Workload(
        model=SHAPE,
        split=build_layer_split(small_config(), [[1, 2]]),
        dtype="float32",
        context="ring",
        attention="plain attention",
        device="a CPU",
        clock="CPU time",
        gpus_per_node=2,
    )


@pytest.fixture(autouse=True)
def four_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)


def build(held: tuple[int, ...] = (100_000, 110_000), **changes: Any) -> Any:
    measured = MemoryMeasurement(
        held_bytes=held, activation_bytes_per_token=(1_000.5, 700.25), stage_home_bytes=(250_000, 150_000)
    )
    return cost_profile(
        MODEL,
        {PIPELINE: measured},
        {PIPELINE: TimeMeasurement(**(TIME | changes))},
        workload(),
    )


def test_schemes_with_context_ranks_say_of_which_kind() -> None:
    schemes = [Scheme("<tp2>"), Scheme("<tp3,cp7>")]
    sizes = MemoryMeasurement(
        held_bytes=[100_000], activation_bytes_per_token=[1_000.5], stage_home_bytes=[400_000]
    )
    times = TimeMeasurement(**(TIME | {"stage_multipliers": [1.0]}))
    profile = cost_profile(MODEL, dict.fromkeys(schemes, sizes), dict.fromkeys(schemes, times), workload())
    assert [profile.context(scheme) for scheme in schemes] == [None, "ring"]
    # Of a single stage there is a number.
    assert json.loads(profile.to_json())["schemes"][0]["held_bytes"] == 100_000
    # Padding to 21 tokens never exceeds a cap.
    assert json.loads(profile.to_json())["memory"]["token_multiple"] == math.lcm(CAP_MULTIPLE, 2, 21)


def test_every_measurement_is_in_the_document() -> None:
    document = json.loads(build(quality=QUALITY).to_json())
    (entry,) = document["schemes"]
    assert entry == {
        "scheme": "<tp2,pp2,selective>",
        **TIME,
        "stage_layers": [1, 2],
        "fit": QUALITY,
        "held_bytes": [100_000, 110_000],
        "activation_bytes_per_token": [1_000.5, 700.25],
        "stage_home_bytes": [250_000, 150_000],
    }
    assert document["dtype"] == "float32"
    assert document["model"]["switches"] == ["qk_norm"]
    assert build().model == SHAPE
    assert document["memory"] == {
        "reserved_bytes": 20_000,
        "home_bytes": 400_000,
        "token_multiple": CAP_MULTIPLE,
    }
    assert document["hardware"]["gpus_per_node"] == 2
    assert document["hardware"]["memory_bytes"] == 1_000_000
    assert document["name"] == "measured-3x24-a-CPU"
    assert "measured" in document["source"]
    assert torch.__version__ in document["source"]
    assert "CPU time of one rank" in document["source"]
    assert document["attention"] == "plain attention"
    assert document["hardware"]["device"] == "a CPU"


def test_the_cap_is_what_is_left_for_activations() -> None:
    # 1,000,000 - 100,000 held - 250,000 / 2 home - 20,000 reserved = 755,000: 754 tokens, in whole 64s.
    cluster = Cluster(gpus=4, gpus_per_node=4)
    assert build().cap_tokens(PIPELINE, cluster) == 704
    # The last stage is the fullest where it holds so much that less than 704 x 700.25 are left.
    assert build(held=(100_000, 450_000)).cap_tokens(PIPELINE, cluster) == 640
    # Some of six ranks are in no replica: a sixth of 400,000 on each leaves 813,333.
    assert build().cap_tokens(PIPELINE, Cluster(gpus=6, gpus_per_node=6)) == 768


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("linear_ms_per_token", -0.01),
        ("fixed_ms", -1.0),
        ("quadratic_ms_per_token2", -1e-9),
        ("stage_multipliers", [1.0]),
        ("stage_multipliers", [1.0, -1.0]),
        ("forward_share", 1.5),
    ],
)
def test_a_measurement_out_of_range_is_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidInputError, match=field) as caught:
        build(**{field: value})
    assert caught.value.code == "profile_invalid"


def test_as_many_stages_as_the_scheme_has_are_measured() -> None:
    with pytest.raises(InvalidInputError, match="held_bytes") as caught:
        build(held=(100_000,) * 3)
    assert caught.value.code == "profile_invalid"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_time_that_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(InvalidInputError):
        build(fixed_ms=value)
