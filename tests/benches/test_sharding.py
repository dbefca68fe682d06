"""Sharding in the planner: rounds cost their transfers, and more tokens fit."""

import json
from types import ModuleType

import numpy as np
import pytest

from benches.loading import load_script
from hydraulis import Cluster, CostProfile, Planner, Scheme
from hydraulis._core import Link, LinkRates
from hydraulis.planner import load_profile

PROFILE = "analytic:llama-7b-a800:A100-80GB"
CLUSTER = Cluster(32, 8)


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return load_script("sharding")


@pytest.fixture(scope="module")
def profiles(bench: ModuleType) -> dict[str, CostProfile]:
    found: dict[str, CostProfile] = bench.by_kind(load_profile(PROFILE))
    return found


def moved_bytes(profile: CostProfile, lengths: list[int]) -> tuple[int, int]:
    """Return the most micro-batches of a replica, and the bytes that cross between nodes."""
    link = Link.of_profile(profile, LinkRates(gigabytes_per_s=20.0))
    plan = Planner(profile, CLUSTER, strategies=["16x<tp2>"], link=link).plan(np.array(lengths))
    assert plan.moved_bytes is not None
    return max(len(replica.micro_batches) for replica in plan.replicas), plan.moved_bytes


def test_only_further_micro_batches_move_more_bytes(profiles: dict[str, CostProfile]) -> None:
    few, many = [2000] * 16, [14_000] * 32
    (one, whole), (still_one, sharded) = (moved_bytes(profiles[kind], few) for kind in ("none", "gradients"))
    assert (one, still_one) == (1, 1)
    assert whole == sharded
    (_, whole), (rounds, sharded) = (moved_bytes(profiles[kind], many) for kind in ("none", "gradients"))
    # Of 6 bytes of an element 2 are those of the parameter, which is gathered once.
    assert rounds == 2
    assert sharded == whole // 6 * 10


def test_sharded_parameters_travel_twice_but_for_embedding_last_layer_and_head(
    profiles: dict[str, CostProfile],
) -> None:
    (_, none), (_, parameters) = (moved_bytes(profiles[kind], [2000] * 16) for kind in ("none", "parameters"))
    # 31 of 32 layers; a layer's norms are not split.
    fields = json.loads(profiles["none"].to_json())["model"]
    rows = [(row["parts"], row["rows"] * row["row_elements"]) for row in fields["parameters"]]
    layer = sum(size for parts, size in rows if parts == ["layer"])
    all_groups = 32 * layer + sum(size for parts, size in rows if parts != ["layer"])
    assert parameters / none == pytest.approx(1 + 2 / 6 * 31 * layer / all_groups, rel=1e-4)


def test_gradients_of_two_buckets_stay(profiles: dict[str, CostProfile]) -> None:
    document = json.loads(profiles["none"].to_json())
    matrices = [row for row in document["model"]["parameters"] if row["parts"] == ["layer"]]
    layer = sum(row["rows"] * row["row_elements"] for row in matrices)
    (entry,) = (one for one in document["schemes"] if one["scheme"] == "<1>")
    caps = [profiles[kind].cap_tokens(Scheme("<1>"), CLUSTER) for kind in ("none", "gradients")]
    # Without 30 of 32 layers, and without embedding and head, which are smaller than a layer.
    saved = 4 * (30 * layer + 2 * 32_000 * 4096)
    assert caps[1] - caps[0] == pytest.approx(saved / entry["activation_bytes_per_token"], abs=256)


def test_the_script_compares_all_kinds(bench: ModuleType, profiles: dict[str, CostProfile]) -> None:
    batch = np.array([4000, 2000, 1000, 500] * 20)
    results = {kind: [bench.planned(profile, batch, CLUSTER, 50.0)] for kind, profile in profiles.items()}
    (none,), (gradients,), (parameters,) = results.values()
    assert none.longest < gradients.longest < parameters.longest
    lines = list(bench.summary(results))
    assert len(lines) == 3
    assert f"{parameters.plan.step_ms / none.plan.step_ms - 1:+.1%}" in lines[-1]


def test_sharded_adapters_admit_longer_sequences(bench: ModuleType) -> None:
    cluster = Cluster(8, 8)
    kinds = bench.by_kind(bench.with_adapters("qwen3-32b", "A100-80GB", 16))
    results = {
        kind: bench.planned(profile, np.array([3000] * 8), cluster, 50.0) for kind, profile in kinds.items()
    }
    # The gradients of adapters are few; whole parameters are 64 GB.
    assert results["none"].longest == results["gradients"].longest
    assert results["parameters"].longest > 1.3 * results["none"].longest


def test_the_floor_is_below_all_kinds(bench: ModuleType) -> None:
    # Memory binds here, and not on 80 GB.
    name = "analytic:llama-7b-a800:A100-40GB"
    batch = np.array([4000, 2000, 1000, 500] * 20)
    kinds = bench.by_kind(load_profile(name))
    results = {kind: [bench.planned(profile, batch, CLUSTER, 50.0)] for kind, profile in kinds.items()}
    profile, ample = bench.with_ample_memory(load_profile(f"{name},none,full"), CLUSTER)
    assert profile.schemes == load_profile(name).schemes
    results["floor"] = [bench.planned(profile, batch, ample, None)]
    *kinds_found, (floor,) = results.values()
    bound = floor.plan.lower_bound_ms
    assert all(bound <= found.plan.iteration_ms for (found,) in kinds_found)
    assert floor.plan.iteration_ms < results["none"][0].plan.iteration_ms
    *_, last = bench.summary(results)
    change = bound / results["none"][0].plan.iteration_ms - 1
    assert f"below {bound:.1f} ms in the mean, {change:+.1%}" in last
