"""A profile's document has every measurement, and its edits change only their fields."""

import json
import math
from typing import Any

import pytest

from helpers import refused
from hydraulis import Cluster, InvalidInputError, Scheme
from hydraulis.planner.model_shape import build_layer_split, build_model_shape
from hydraulis.planner.profile_document import (
    CAP_MULTIPLE,
    LinkMeasurement,
    ModelMemory,
    SchemeMemory,
    SchemeTimes,
    Workload,
    fitted_times,
    measured_document,
    measured_links,
    with_links,
    with_scaled_times,
)
from small_model import small_config

MODEL = ModelMemory(memory_bytes=1_000_000, reserved_bytes=20_000, optimizer_bytes=400_000)
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
        compiled=False,
        float8=True,
        symmetric_memory=True,
        sharding="none",
        device="a CPU",
        clock="CPU time",
        gpus_per_node=2,
        torch="2.13.0",
    )


def build(resident: tuple[int, ...] = (100_000, 110_000), **changes: Any) -> Any:
    measured = SchemeMemory(
        resident_bytes=resident,
        activation_bytes_per_token=(1_000.5, 700.25),
        stage_optimizer_bytes=(250_000, 150_000),
    )
    return measured_document(
        MODEL,
        {PIPELINE: measured},
        {PIPELINE: SchemeTimes(**(TIME | changes))},
        workload(),
    )


def test_schemes_with_context_ranks_state_their_kind() -> None:
    schemes = [Scheme("<tp2>"), Scheme("<tp3,cp7>")]
    sizes = SchemeMemory(
        resident_bytes=[100_000], activation_bytes_per_token=[1_000.5], stage_optimizer_bytes=[400_000]
    )
    times = SchemeTimes(**(TIME | {"stage_multipliers": [1.0]}))
    profile = measured_document(
        MODEL, dict.fromkeys(schemes, sizes), dict.fromkeys(schemes, times), workload()
    )
    assert [profile.context(scheme) for scheme in schemes] == [None, "ring"]
    # A single stage has a number.
    assert json.loads(profile.to_json())["schemes"][0]["resident_bytes"] == 100_000
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
        "resident_bytes": [100_000, 110_000],
        "activation_bytes_per_token": [1_000.5, 700.25],
        "stage_optimizer_bytes": [250_000, 150_000],
    }
    assert document["dtype"] == "float32"
    assert any("q_norm" in row["name"] for row in document["model"]["parameters"])
    assert build().model == SHAPE
    assert document["memory"] == {
        "reserved_bytes": 20_000,
        "optimizer_bytes": 400_000,
        "token_multiple": CAP_MULTIPLE,
    }
    assert document["hardware"]["gpus_per_node"] == 2
    assert document["hardware"]["memory_bytes"] == 1_000_000
    assert document["name"] == "measured-3x24-a-CPU"
    assert "measured" in document["source"]
    assert "2.13.0" in document["source"]
    assert "CPU time of one rank" in document["source"]
    assert document["attention"] == "plain attention"
    assert (document["compiled"], document["float8"]) == (False, True)
    assert (build().compiled, build().float8) == (False, True)
    assert document["symmetric_memory"] is build().symmetric_memory is True
    assert document["hardware"]["device"] == "a CPU"


def test_the_cap_is_the_memory_left_for_activations() -> None:
    # 1,000,000 - 100,000 resident - 250,000 / 2 optimizer - 20,000 reserved = 755,000: 754 tokens, in whole
    # 64s.
    cluster = Cluster(gpus=4, gpus_per_node=4)
    assert build().cap_tokens(PIPELINE, cluster) == 704
    # The last stage limits the cap if fewer than 704 x 700.25 bytes are left on it.
    assert build(resident=(100_000, 450_000)).cap_tokens(PIPELINE, cluster) == 640
    # Some of six ranks are in no replica: a sixth of 400,000 on each leaves 813,333.
    assert build().cap_tokens(PIPELINE, Cluster(gpus=6, gpus_per_node=6)) == 768


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("linear_ms_per_token", -0.01),
        ("fixed_ms", -1.0),
        ("least_ms", -1.0),
        ("quadratic_ms_per_token2", -1e-9),
        ("stage_multipliers", [1.0]),
        ("stage_multipliers", [1.0, -1.0]),
        ("forward_share", 1.5),
    ],
)
def test_a_measurement_out_of_range_is_refused(field: str, value: Any) -> None:
    with refused("profile_invalid", field):
        build(**{field: value})


def test_the_number_of_stages_is_checked() -> None:
    with refused("profile_invalid", "resident_bytes"):
        build(resident=(100_000,) * 3)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_time_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(InvalidInputError):
        build(fixed_ms=value)


def test_edits_change_only_their_fields() -> None:
    profile = build(quality=QUALITY)
    link = LinkMeasurement("send", 2, 0.1, 12.5)
    linked = with_links(profile, [link])
    assert measured_links(profile) == []
    assert measured_links(linked) == [link]
    assert with_links(linked, []) == with_links(profile, [])
    (before,) = fitted_times(profile)
    assert (before.scheme, before.fixed_ms) == (PIPELINE, 0.5)
    assert (before.relative_error, before.held_out_error, before.longest_tokens) == (0.02, 0.03, 64)
    (after,) = fitted_times(with_scaled_times(profile, lambda _: 2.0))
    assert after == before._replace(quadratic_ms_per_token2=2e-5, linear_ms_per_token=0.02, fixed_ms=1.0)
    assert with_scaled_times(with_scaled_times(profile, lambda _: 2.0), lambda _: 0.5) == profile
    floored = build(least_ms=7.0)
    assert [one.least_ms for one in fitted_times(floored)] == [7.0]
    assert [one.least_ms for one in fitted_times(with_scaled_times(floored, lambda _: 2.0))] == [14.0]
    assert floored.micro_batch_ms(PIPELINE, [5]) == 7.0
    # 1e-5 s^2 + 0.01 s + 0.5
    assert floored.micro_batch_ms(PIPELINE, [1000]) == pytest.approx(20.5)
    (unfitted,) = fitted_times(build())
    assert (unfitted.relative_error, unfitted.longest_tokens) == (None, None)
