"""The predicted time of the first steps, and of the run, and the kinds of sharding that would shorten it."""

import os
import re
from dataclasses import asdict, replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest

from helpers import refused
from hydraulis import Cluster, CostProfile, Link, LinkRates, Planner, Scheme
from hydraulis.config.layered.table import from_table
from hydraulis.config.model import ModelConfig
from hydraulis.config.run import RunConfig
from hydraulis.data.sampling.run_sampler import make_sampler
from hydraulis.planner.model_shape import build_model_shape
from hydraulis.planner.profile_document import with_schemes
from hydraulis.preflight import step_time
from hydraulis.preflight.step_time import check_step_time
from profiles import made_up_profile

CLUSTER = Cluster(64, 8)
# The shape of Llama with 32B parameters.
MODEL = ModelConfig(
    vocab_size=32_000,
    hidden_size=6_656,
    intermediate_size=17_920,
    num_hidden_layers=60,
    num_attention_heads=52,
    num_key_value_heads=52,
)
LENGTHS = np.minimum(np.random.default_rng(0).lognormal(6.2, 1.2, 2_000), 16_384).astype(np.int64)
DATA: Any = SimpleNamespace(lengths=LENGTHS, target_counts=LENGTHS - 1)


def config(link: str, *strategies: str) -> RunConfig:
    tables = {
        "model": asdict(MODEL),
        "data": {"tokens_per_batch": 200_000, "max_tokens": 16_384, "index_directory": "index"},
        "optimizer": {},
        "train": {"steps": 1_000, "dtype": "bfloat16"},
        "planner": {"strategies": list(strategies) or ["search"], "memory_mib": 80_000, "link": link},
        "lora": {},
        "samples": {},
        "checkpoint": {},
        "output": {"directory": "run"},
    }
    return from_table(RunConfig, tables, "")


@lru_cache
def profile() -> CostProfile:
    whole = CostProfile.analytic(
        build_model_shape(MODEL), CLUSTER, "A100-80GB", checkpointing=["none", "full"]
    )
    few = ("<1>", "<cp4>", "<tp2>", "<tp2,cp4>", "<tp4>", "<tp4,pp2>", "<tp8>", "<tp4,full>")
    return with_schemes(whole, [Scheme(one) for one in few])


@pytest.fixture(autouse=True)
def enough_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_time, "_PLANNING_S", 1e9)


def described(link: str, *strategies: str, steps: int = 1_000, **train: Any) -> tuple[str, str]:
    run = config(link, *strategies)
    run = replace(run, train=replace(run.train, **train))
    return check_step_time(run, CLUSTER, profile(), DATA, steps)


def planned_ms(
    link: float | None, kind: Literal["none", "gradients", "parameters"], batches: int = 50
) -> float:
    """Plan the same batches with a planner of its own."""
    used = profile() if kind == "none" else profile().with_sharding(kind)
    rates = None if link is None else LinkRates(gigabytes_per_s=link)
    planner = Planner(
        used, CLUSTER, strategies="search", link=None if rates is None else Link.of_profile(used, rates)
    )
    run = config("none")
    sampler = make_sampler(run.data, DATA, run.train.seed)
    taken = [sampler.batch(number).sequences for number in range(batches)]
    return float(np.mean([planner.plan(LENGTHS[of], LENGTHS[of] - 1).step_ms for of in taken]))


def test_what_follows_from_other_checks_is_told_later() -> None:
    later = ("later", "follows from profile, data and length")
    for cost, data, steps in ((None, DATA, 5), (profile(), None, 5), (profile(), DATA, None)):
        assert check_step_time(config("none"), CLUSTER, cost, data, steps) == later


def test_the_mean_of_the_first_steps_is_that_of_their_plans() -> None:
    status, text = described("none")
    ms = planned_ms(None, "none")
    assert (status, text) == (
        "ok",
        f"{ms:,.0f} ms a step, the mean of the first 50 batches, predicted without transfers: "
        f"{1_000 * ms / 60_000:,.1f} min for 1,000 steps",
    )
    # A run of one step has no more batches.
    ms = planned_ms(None, "none", 1)
    assert described("none", steps=1)[1].startswith(f"{ms:,.0f} ms a step, the mean of the first 1 batch, ")


def test_fewer_batches_are_planned_if_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_time, "_PLANNING_S", -1.0)
    text = described("none")[1]
    assert text.startswith(f"{planned_ms(None, 'none', 3):,.0f} ms a step, the mean of the first 3 batches, ")


def test_cpu_ranks_that_share_cores_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    run = config("none")
    on_cpu = replace(run, train=replace(run.train, device="cpu"))
    here, profile = Cluster(8, 8), made_up_profile({"<1>": 40_000})
    said = "; 8 ranks share 2 cores if they run on this machine, and steps then take longer"
    assert check_step_time(on_cpu, here, profile, DATA, 3)[1].endswith(said)
    on_cuda = replace(run, train=replace(run.train, device="cuda"))
    assert "share" not in check_step_time(on_cuda, here, profile, DATA, 3)[1]


def test_a_resumed_run_has_the_steps_that_are_left() -> None:
    text = check_step_time(config("none"), CLUSTER, profile(), DATA, 1_000, completed=900)[1]
    assert text.endswith(f": {100 * planned_ms(None, 'none') / 60_000:,.1f} min for 100 steps")
    assert check_step_time(config("none"), CLUSTER, profile(), DATA, 5, completed=9)[1].endswith(
        "for 0 steps"
    )


def test_the_kind_of_sharding_with_the_shortest_steps_is_a_warning() -> None:
    ms = {kind: planned_ms(200.0, kind) for kind in ("none", "gradients", "parameters")}
    best = min(ms, key=ms.__getitem__)
    assert best != "none"
    assert ms[best] < 0.95 * ms["none"]
    status, text = described("200")
    assert status == "warning"
    assert text.startswith(f"{ms['none']:,.0f} ms a step, the mean of the first 50 batches, predicted with ")
    less = f"{1 - ms[best] / ms['none']:.0%}".replace("%", " %")
    assert text.endswith(
        f"; with train.sharding = '{best}' they take {ms[best]:,.0f} ms, {less} less: set it, and name a "
        "profile of that sharding"
    )


def test_no_sharding_is_named_over_slow_links() -> None:
    status, text = described("2")
    assert (status, "sharding" in text) == ("ok", False)


@pytest.mark.parametrize(
    ("link", "strategies", "is_compared"),
    [("200", (), True), ("none", (), False), ("200", ("16x<tp4,full>",), False)],
)
def test_kinds_of_sharding_are_compared_with_links_and_for_a_search(
    link: str, strategies: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, *, is_compared: bool
) -> None:
    monkeypatch.setattr(step_time, "_shorter_by_sharding", lambda *_: "compared")
    assert ("compared" in described(link, *strategies)[1]) is is_compared


def test_a_profile_that_cannot_be_sharded_has_a_time_too() -> None:
    caps = {"<tp4>": 20_000, "<tp8>": 40_000}
    status, text = check_step_time(config("200"), CLUSTER, made_up_profile(caps), DATA, 10)
    assert status == "ok"
    assert re.match(r"[\d,]+ ms a step, the mean of the first 10 batches, predicted with transfers: ", text)


def test_a_sequence_without_a_plan_is_refused() -> None:
    with refused("sequence_too_long"):
        check_step_time(config("none"), CLUSTER, made_up_profile({"<tp4>": 1_000}), DATA, 10)


@pytest.mark.parametrize(
    ("ms", "text"),
    [(500.0, "0.5 s"), (119_999.0, "120.0 s"), (120_000.0, "2.0 min"), (7.2e6, "2.0 h"), (5e8, "5.8 days")],
)
def test_durations_have_the_longest_unit_with_two_of_it(ms: float, text: str) -> None:
    assert step_time._duration(ms) == text
