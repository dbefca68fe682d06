"""A resumed run uses its own profile if it was measured under the conditions of this run."""

import json
from pathlib import Path

import pytest

from helpers import refused
from hydraulis import Cluster, CostProfile, Scheme
from hydraulis.config.run import RunConfig, load
from hydraulis.model.attention.plain import PlainAttention
from hydraulis.planner.model_shape import build_layer_split, build_model_shape
from hydraulis.planner.profile_document import (
    ModelMemory,
    SchemeMemory,
    SchemeTimes,
    Workload,
    measured_document,
)
from hydraulis.profile.run_profile import _resumed_profile, chosen_profile
from hydraulis.runtime.checkpoint.resume import ResumedRun
from hydraulis.runtime.ranks.device import CPU, device_name
from hydraulis.runtime.state.parameters import ModelParameters
from profiles import made_up_profile

ONE = Cluster(1, 1)

CONFIG = """
[model]
vocab_size = 256
hidden_size = 32
intermediate_size = 48
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
[data]
tokens_per_batch = 120
[train]
dtype = "float32"
steps = 1
device = "cpu"
attention = "plain"
[planner]
memory_mib = 6
strategies = ["1x<1>"]
[output]
directory = "run"
"""


def config_with(folder: Path, *overrides: str) -> RunConfig:
    (folder / "run.toml").write_text(CONFIG)
    return load(folder / "run.toml", overrides)


def resumed_of(folder: Path, config: RunConfig, device: str) -> ResumedRun:
    """Write the profile of an earlier run of the configuration."""
    scheme = Scheme("<1>")
    profile = measured_document(
        ModelMemory(memory_bytes=config.planner.memory_bytes, reserved_bytes=0, optimizer_bytes=0),
        {
            scheme: SchemeMemory(
                resident_bytes=[0], activation_bytes_per_token=[1.0], stage_optimizer_bytes=[0]
            )
        },
        {
            scheme: SchemeTimes(
                quadratic_ms_per_token2=1e-5,
                linear_ms_per_token=0.01,
                fixed_ms=0.5,
                forward_share=0.3,
                stage_multipliers=[1.0],
            )
        },
        Workload(
            model=build_model_shape(config.model),
            split=build_layer_split(config.model, config.train.stage_layers),
            dtype=config.train.dtype,
            context="ring",
            gpus_per_node=1,
            attention=PlainAttention.name,
            compiled=bool(config.train.compile),
            float8=config.train.float8,
            symmetric_memory=config.train.symmetric_memory,
            sharding=config.train.sharding,
            device=device,
            clock="CPU time",
            torch="2.13.0",
        ),
    )
    (folder / "profile.json").write_text(profile.to_json())
    return ResumedRun(run=folder, checkpoint=folder, manifest=None)  # type: ignore[arg-type]


def resume_with(config: RunConfig, resumed: ResumedRun) -> tuple[bool, list[str]]:
    notes: list[str] = []
    return _resumed_profile(config, resumed, notes.append) is not None, notes


def test_the_profile_of_the_same_run_is_used_without_a_note(tmp_path: Path) -> None:
    config = config_with(tmp_path)
    assert resume_with(config, resumed_of(tmp_path, config, device_name(CPU))) == (True, [])


@pytest.mark.parametrize(
    ("override", "names"),
    [
        ('train.dtype="bfloat16"', ("dtype", "float32", "bfloat16")),
        ("train.compile=true", ("compile was false and is true",)),
        ('planner.strategies=["1x<1,full>"]', ("<1,full>",)),
        ("planner.memory_mib=7", ("memory", "6 MiB", "7 MiB")),
        ('train.attention="auto"', ("attention", "plain attention", "torch's flash attention for cpu")),
        ('planner.strategies=["1x<tp2>"]', ("<tp2>",)),
    ],
)
def test_a_profile_of_other_conditions_is_not_used(
    tmp_path: Path, override: str, names: tuple[str, ...]
) -> None:
    resumed = resumed_of(tmp_path, config_with(tmp_path), device_name(CPU))
    is_used, (note,) = resume_with(config_with(tmp_path, override), resumed)
    assert not is_used
    assert all(name in note for name in (str(tmp_path), *names))


def test_a_profile_of_another_device_is_not_used(tmp_path: Path) -> None:
    config = config_with(tmp_path)
    is_used, (note,) = resume_with(config, resumed_of(tmp_path, config, "another device"))
    assert not is_used
    assert "another device" in note
    assert device_name(CPU) in note


@pytest.mark.parametrize("is_named", [True, False])
def test_a_different_memory_is_noted(tmp_path: Path, *, is_named: bool) -> None:
    config = config_with(tmp_path)
    resumed = resumed_of(tmp_path, config, device_name(CPU))
    named = made_up_profile({"<1>": 64})
    notes: list[str] = []
    assert chosen_profile(config, ONE, resumed, notes.append) is not None
    assert notes == []
    (tmp_path / "profile.json").write_text(named.to_json())
    override = [f"planner.profile={tmp_path}/profile.json"] if is_named else []
    assert chosen_profile(config_with(tmp_path, *override), ONE, resumed, notes.append) == named
    # 10 GB in MiB, and the configured memory.
    (note,) = notes
    assert "9,536.743164 MiB" in note
    assert "planner.memory_mib = 6" in note


def test_a_profile_of_less_optimizer_state_is_refused(tmp_path: Path) -> None:
    config = config_with(tmp_path)
    resumed_of(tmp_path, config, device_name(CPU))
    path = tmp_path / "profile.json"
    document = json.loads(path.read_text())
    parameters = ModelParameters.from_config(config.model).elements.trained
    document["memory"]["optimizer_bytes"] = 12 * parameters
    path.write_text(json.dumps(document))
    named = f"planner.profile={path}"
    assert chosen_profile(config_with(tmp_path, named, "optimizer.name='lion'"), ONE, None) is not None
    with refused("profile_mismatch", f"{12 * parameters:,}", "'adamw'", f"{16 * parameters:,}"):
        chosen_profile(config_with(tmp_path, named), ONE, None)
    # Frozen parameters have no state.
    frozen = "train.frozen=['model.layers.*']"
    assert chosen_profile(config_with(tmp_path, named, frozen), ONE, None) is not None


def test_a_profile_without_measured_conditions_is_used(tmp_path: Path) -> None:
    config = config_with(tmp_path)
    resumed = resumed_of(tmp_path, config, device_name(CPU))
    named = made_up_profile({"<1>": 64})
    assert named.attention is None
    (tmp_path / "profile.json").write_text(named.to_json())
    assert resume_with(config, resumed) == (True, [])


def write_profile(path: Path, profile: CostProfile) -> str:
    path.write_text(profile.to_json())
    return str(path)


def test_profiles_of_several_devices_are_joined(tmp_path: Path) -> None:
    caps = {"<1>": 64}
    first, second, third = (
        write_profile(tmp_path / f"{name}.json", made_up_profile(caps, device=name, slowdown=slowdown))
        for name, slowdown in (("A", 1.0), ("B", 2.0), ("C", 0.5))
    )
    named = f"planner.profile={first}", f"planner.device_profiles=['{second}', '{third}']"
    profile = chosen_profile(config_with(tmp_path, *named), ONE, None)
    assert profile is not None
    assert [(rate, other.device) for rate, other in profile.other_devices] == [(0.5, "B"), (2.0, "C")]
    # The run's own profile has all devices, and is a profile to name.
    whole = f"planner.profile={write_profile(tmp_path / 'whole.json', profile)}"
    assert chosen_profile(config_with(tmp_path, whole), ONE, None) == profile
    with refused("profile_mismatch", "two profiles of B"):
        chosen_profile(config_with(tmp_path, whole, f"planner.device_profiles=['{second}']"), ONE, None)
    other = write_profile(tmp_path / "other.json", made_up_profile({"<tp2>": 64}, device="D"))
    with refused("profile_mismatch", "no scheme in common", f"planner.device_profiles[0] = '{other}'"):
        chosen_profile(config_with(tmp_path, named[0], f"planner.device_profiles=['{other}']"), ONE, None)


def test_each_device_profile_is_checked_like_the_first(tmp_path: Path) -> None:
    config = config_with(tmp_path)
    resumed_of(tmp_path, config, "A")
    document = json.loads((tmp_path / "profile.json").read_text())
    parameters = ModelParameters.from_config(config.model).elements.trained
    document["memory"]["optimizer_bytes"] = 16 * parameters
    (tmp_path / "profile.json").write_text(json.dumps(document))
    document["hardware"]["device"], document["dtype"] = "B", "bfloat16"
    (tmp_path / "other.json").write_text(json.dumps(document))
    named = f"planner.profile={tmp_path}/profile.json", f"planner.device_profiles=['{tmp_path}/other.json']"
    with refused("profile_mismatch", "planner.device_profiles[0] = ", "dtype bfloat16"):
        chosen_profile(config_with(tmp_path, *named), ONE, None)


def test_a_resumed_run_keeps_its_profile_if_a_device_of_it_is_here(tmp_path: Path) -> None:
    config = config_with(tmp_path)
    resumed = resumed_of(tmp_path, config, "another device")
    path = tmp_path / "profile.json"
    first = CostProfile.from_json(path.read_text())
    document = json.loads(first.to_json())
    # A shorter name than torch's, and a kernel of its own.
    document["hardware"]["device"] = "cpu"
    path.write_text(first.to_json())
    document["attention"], other_kernel = PlainAttention.name, "kernel of the other device"
    first = CostProfile.from_json(json.dumps(json.loads(first.to_json()) | {"attention": other_kernel}))
    here = CostProfile.from_json(json.dumps(document))
    path.write_text(first.with_other_devices([(2.0, here)]).to_json())
    assert resume_with(config, resumed) == (True, [])
    document["hardware"]["memory_bytes"] *= 2
    there = CostProfile.from_json(json.dumps(document))
    path.write_text(first.with_other_devices([(2.0, there)]).to_json())
    is_used, (note,) = resume_with(config, resumed)
    assert not is_used
    assert "memory was 12 MiB and is 6 MiB" in note
