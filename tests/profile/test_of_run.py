"""Which profile a resumed run takes: that of the run, if it was measured as this run would measure it."""

from pathlib import Path

import pytest

from hydraulis import Scheme
from hydraulis.config.run import RunConfig, load
from hydraulis.model.attention.plain import PlainAttention
from hydraulis.planner.model_shape import build_layer_split, build_model_shape
from hydraulis.profile.document import (
    MemoryMeasurement,
    ModelMemory,
    TimeMeasurement,
    Workload,
    cost_profile,
)
from hydraulis.profile.of_run import _of_resumed, chosen_profile
from hydraulis.runtime.checkpoint.resume import ResumedRun
from hydraulis.runtime.ranks.device import CPU, device_name
from profiles import made_up_profile

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
    """Leave a profile behind that a run of the configuration could have measured."""
    scheme = Scheme("<1>")
    profile = cost_profile(
        ModelMemory(memory_bytes=config.planner.memory_mib << 20, reserved_bytes=0, home_bytes=0),
        {scheme: MemoryMeasurement(held_bytes=[0], activation_bytes_per_token=[1.0], stage_home_bytes=[0])},
        {
            scheme: TimeMeasurement(
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
            device=device,
            clock="CPU time",
        ),
    )
    (folder / "profile.json").write_text(profile.to_json())
    return ResumedRun(run=folder, checkpoint=folder, manifest=None)  # type: ignore[arg-type]


def taken(config: RunConfig, resumed: ResumedRun) -> tuple[bool, list[str]]:
    notes: list[str] = []
    return _of_resumed(config, resumed, notes.append) is not None, notes


def test_the_profile_of_the_same_run_is_taken_without_a_word(tmp_path: Path) -> None:
    config = config_with(tmp_path)
    assert taken(config, resumed_of(tmp_path, config, device_name(CPU))) == (True, [])


ALL_ANEW = "all schemes are measured, since they share their buffers and the fit of their times"


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ('train.dtype="bfloat16"', "dtype was float32 and is bfloat16"),
        ('planner.strategies=["1x<1,full>"]', f"it lacks <1,full>, and {ALL_ANEW}"),
        ("planner.memory_mib=7", "memory was 6 MiB and is 7 MiB"),
        ('train.attention="auto"', "attention was plain attention and is torch's flash attention for cpu"),
        ('planner.strategies=["1x<tp2>"]', f"it lacks <tp2>, and {ALL_ANEW}"),
    ],
)
def test_what_was_measured_otherwise_is_measured_anew(tmp_path: Path, override: str, says: str) -> None:
    resumed = resumed_of(tmp_path, config_with(tmp_path), device_name(CPU))
    is_taken, notes = taken(config_with(tmp_path, override), resumed)
    assert not is_taken
    assert notes == [f"the profile of {tmp_path} does not serve: {says}"]


def test_that_of_another_device_is_measured_anew(tmp_path: Path) -> None:
    config = config_with(tmp_path)
    is_taken, notes = taken(config, resumed_of(tmp_path, config, "another device"))
    assert not is_taken
    assert notes[0].endswith(f"device was another device and is {device_name(CPU)}")


@pytest.mark.parametrize("is_named", [True, False])
def test_whose_memory_counts_is_said_where_two_differ(tmp_path: Path, *, is_named: bool) -> None:
    config = config_with(tmp_path)
    resumed = resumed_of(tmp_path, config, device_name(CPU))
    named = made_up_profile({"<1>": 64})
    notes: list[str] = []
    assert chosen_profile(config, resumed, notes.append) is not None
    assert notes == []
    (tmp_path / "profile.json").write_text(named.to_json())
    override = [f"planner.profile={tmp_path}/profile.json"] if is_named else []
    assert chosen_profile(config_with(tmp_path, *override), resumed, notes.append) == named
    # 10 GB, in MiB.
    says = "9,536.743164 MiB of the profile; planner.memory_mib = 6 is not looked at"
    assert notes == [f"memory: {says}"]


def test_one_that_no_run_measured_is_taken_as_before(tmp_path: Path) -> None:
    config = config_with(tmp_path)
    resumed = resumed_of(tmp_path, config, device_name(CPU))
    named = made_up_profile({"<1>": 64})
    assert named.attention is None
    (tmp_path / "profile.json").write_text(named.to_json())
    assert taken(config, resumed) == (True, [])
