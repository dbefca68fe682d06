import json
from pathlib import Path

import pytest

from config.run_file import MINIMAL, field_names, write
from helpers import refused
from hydraulis.config.layered.layers import PRESETS
from hydraulis.config.layered.table import from_table
from hydraulis.config.optimizer import OptimizerConfig
from hydraulis.config.run import RunConfig, load, to_dict
from hydraulis.config.train import TrainConfig
from hydraulis.errors import InvalidInputError

PRESET_REMEDY = "name a preset, 'laptop', 'node', 'nodes'"
# For every field a value of the right type that no run can use; the model's are tested with the model.
BAD_VALUES = {
    "data.source": '"web"',
    "data.max_tokens": "1",
    "data.sources": '[{files=["x"], weight=0}]',
    "data.tokenizer": '""',
    "data.too_long": '"drop"',
    "data.broken_records": '"drop"',
    "data.tokens_per_batch": "0",
    "data.sequences_per_batch": "0",
    "data.epoch_end": '"stop"',
    "data.validation": "[{files=[]}]",
    "data.held_out": "1.0",
    "data.held_out_seed": "-1",
    "data.index_directory": '""',
    "data.index_processes": "-1",
    "samples.every": "-1",
    "samples.prompts": '["a", " "]',
    "samples.tokens": "0",
    "samples.temperature": "-0.5",
    "train.steps": "0",
    "train.epochs": "0",
    "train.seed": "-1",
    "train.device": '"tpu"',
    "train.attention": '"slow"',
    "train.dtype": '"float16"',
    "train.frozen": '[" "]',
    "train.evaluate_every": "-1",
    "train.evaluate_sequences": "-1",
    "train.timeout_s": "0",
    "train.silence_s": "0",
    "train.exchange_channels": "3",
    "train.stage_channels": "0",
    "train.start_timeout_s": "0",
    "train.step_timeout_s": "0",
    "checkpoint.timeout_s": "0",
    "train.loss_jump": "0.5",
    "train.norm_jump": "-1",
    "train.sharding": '"half"',
    "train.on_jump": '"ignore"',
    "train.trace_step": "-1",
    "train.profile_steps": "[2, 0]",
    "optimizer.learning_rate": "0.0",
    "optimizer.warmup_steps": "-1",
    "optimizer.schedule": '"step"',
    "optimizer.decay_steps": "-1",
    "optimizer.min_learning_rate": "-0.1",
    "optimizer.no_decay": '[""]',
    "optimizer.clip_norm": "-1",
    "optimizer.betas": "[0.9, 1.0]",
    "optimizer.eps": "0.0",
    "optimizer.name": '"muon"',
    "optimizer.momentum": "1.0",
    "optimizer.nesterov": "true",
    "optimizer.alpha": "-0.1",
    "optimizer.weight_decay": "-0.1",
    "lora.rank": "-1",
    "lora.alpha": "0.0",
    "lora.targets": "[]",
    "lora.dropout": "0.1",
    "checkpoint.every_steps": "-1",
    "checkpoint.keep": "-1",
    "planner.strategies": "[]",
    "planner.schemes": '[""]',
    "planner.checkpointing": '["some"]',
    "planner.layer_plans": "-1",
    "planner.layer_splits": "-1",
    "planner.max_strategies": "0",
    "planner.device_profiles": '[""]',
    "planner.link": '"fast"',
    "planner.recalibrate": "1.0",
    "planner.slow_rank": "1.0",
    "planner.slow_link": "1.1",
    "planner.lookahead": "0",
    "planner.max_delay": "0",
    "planner.context": '"both"',
    "planner.profile_seconds": "0",
    "planner.memory_mib": "0",
    "planner.host_memory_mib": "0",
    "planner.memory": '"all"',
    "output.directory": '""',
    "output.peak_tflops": "0",
}
# Any string may be a path, which is checked when it is opened; both truth values are valid.
WITHOUT_BAD_VALUE = {
    "planner.profile",
    "output.wandb_project",
    "checkpoint.resume",
    "checkpoint.weights",
    "checkpoint.memory_folder",
    # It needs evaluations, not a value of its own.
    "checkpoint.keep_best",
    "data.chat_template",
    "data.eos_token",
    "output.tensorboard",
    "train.compile",
    "train.deterministic",
    "train.float8",
    "train.float8_messages",
    "train.symmetric_memory",
    # The core refuses it, by its own name and with its own code; test_train.py has a test of that.
    "train.stage_layers",
}


def test_reads_a_file_and_fills_in_defaults(tmp_path: Path) -> None:
    config = load(write(tmp_path), [])
    assert config.model.num_hidden_layers == 2
    assert config.data.source == "stdlib"
    assert config.data.max_tokens == 8192
    assert config.train == TrainConfig(steps=10, seed=0, dtype="float32", timeout_s=600.0, trace_step=None)
    assert config.optimizer == OptimizerConfig()
    assert config.planner.strategies == ("1x<tp2>+2x<tp1>", "4x<tp1>")
    assert config.planner.profile == ""
    assert config.planner.profile_seconds == 20.0
    assert config.output.directory == "runs/test"


def test_the_lists_of_bad_values_name_every_field() -> None:
    names = [name for name in field_names() if not name.startswith("model.")]
    assert len(names) >= 18
    assert set(names) == BAD_VALUES.keys() | WITHOUT_BAD_VALUE
    assert any(name.startswith("model.") for name in field_names())


@pytest.mark.parametrize("name", sorted(BAD_VALUES))
def test_refuses_a_bad_value_in_every_field(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        load(write(tmp_path), [f"{name}={BAD_VALUES[name]}"])
    assert refusal.value.code == "config_value"
    assert str(refusal.value).startswith(name)


@pytest.mark.parametrize("name", field_names())
def test_refuses_another_type_in_every_field(tmp_path: Path, name: str) -> None:
    is_list = name in ("data.sources", "data.validation")
    with pytest.raises(InvalidInputError) as refusal:
        load(write(tmp_path), [f"{name}=3" if is_list else f"{name}=[{{}}]"])
    assert refusal.value.code == "config_value"
    assert str(refusal.value).startswith(name)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("name", ["train.timeout_s", "optimizer.learning_rate", "optimizer.weight_decay"])
def test_infinities_and_nan_are_refused(tmp_path: Path, name: str, value: str) -> None:
    with refused("config_value", f"{name} = {value} "):
        load(write(tmp_path), [f"{name}={value}"])


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("optimizer.betas=[-0.1, 0.9]", ["optimizer.betas[0] = -0.1"]),
        ("data.held_out=1.5", ["data.held_out = 1.5 ", "at least 0", "below 1"]),
        ("train.steps=-3", ["train.steps = -3 ", "whole number", "at least 1;"]),
        (
            'data.sources=[{files=["a"], weight=1}, {files=["b"], weight=-0.2}]',
            ["data.sources[1].weight = -0.2 ", "above 0"],
        ),
        ("optimizer.betas=[nan, 0.9]", ["optimizer.betas[0] = nan"]),
        ("train.evaluate_every=5", ["train.evaluate_every = 5 ", "data.held_out = 0 "]),
        *(
            (override, ["checkpoint.keep_best", "a multiple of it"])
            for override in (
                "checkpoint.keep_best=true",
                "checkpoint.keep_best=true\0checkpoint.every_steps=5",
                "checkpoint.keep_best=true\0data.held_out=0.1\0train.evaluate_every=5",
                "checkpoint.keep_best=true\0data.held_out=0.1\0train.evaluate_every=2\0checkpoint.every_steps=5",
            )
        ),
        (
            "optimizer.min_learning_rate=1.0",
            ["optimizer.min_learning_rate = 1.0 ", "optimizer.learning_rate = 0.0003"],
        ),
        ('optimizer.schedule="wsd"', ["optimizer.schedule = 'wsd'", "optimizer.decay_steps = 0"]),
        ("optimizer.decay_steps=5", ["optimizer.decay_steps = 5 ", "'wsd'", "'constant'"]),
        ("planner.strategies=", ["planner.strategies = [] ", "['2x<tp2>']", "['search']"]),
        ('planner.strategies=["a", " "]', ["planner.strategies[1] = ' '"]),
        ('planner.schemes=["<1>"]', ["planner.schemes = ['<1>']", 'planner.strategies = ["search"]']),
        (
            'planner.checkpointing=["full"]',
            ["planner.checkpointing = ['full']", "planner.strategies", "<tp2,full>"],
        ),
        (
            'planner.device_profiles=["h100.json"]',
            ["planner.device_profiles = ['h100.json']", "planner.profile is empty"],
        ),
        ("planner.lookahead=65", ["planner.lookahead = 65 ", "below 65"]),
        (
            "planner.lookahead=4\0planner.max_delay=4",
            ["planner.max_delay = 4 ", "at most 3", "planner.lookahead less 1"],
        ),
        (
            "planner.lookahead=4\0planner.max_strategies=2",
            ["planner.lookahead = 4 ", "planner.max_strategies = 2"],
        ),
        (
            "planner.layer_plans=2",
            ["planner.layer_plans = 2", 'planner.strategies = ["search"]', "<tp2,full:"],
        ),
        ('planner.strategies=["search"]\0planner.layer_plans=33', ["planner.layer_plans = 33 ", "below 33"]),
        ("planner.layer_splits=33", ["planner.layer_splits = 33 ", "below 33"]),
        ('data.sources=[{files=[""]}]', ["data.sources[0].files[0] = ''"]),
        (
            'data.sources=[{files=["a"], fields=["b", "c"]}]',
            ["data.sources[0].fields = ['b', 'c']", "1 to 1", "'text'"],
        ),
        ('data.sources=[{files=["a"], weight=1}, {files=["b"]}]', ["data.sources[1].weight is absent"]),
        (
            "model.sliding_window=4095\0data.max_tokens=4096",
            ["data.max_tokens = 4096 ", "4095", "model.sliding_window"],
        ),
        ("model.vocab_size=255", ["model.vocab_size = 255 ", "256"]),
        ('planner.strategies=["search", "4x<tp1>"]', ["planner.strategies = ['search', '4x<tp1>']"]),
    ],
)
def test_inconsistent_values_are_refused(tmp_path: Path, override: str, parts: list[str]) -> None:
    with refused("config_value", *parts):
        load(write(tmp_path), override.split("\0"))


def test_the_model_checks_itself(tmp_path: Path) -> None:
    with refused("model_invalid", "num_key_value_heads = 3"):
        load(write(tmp_path), ["model.num_key_value_heads=3"])


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("train.warmup_steps=1", ["'warmup_steps' in section [train]", "[optimizer]"]),
        ("train.stepz=1", ["'stepz' in section [train]", "'steps'"]),
        ("trian.steps=1", ["section 'trian'", "'train'"]),
        ("model.hidden=1", ["'hidden' in section [model]", "'hidden_size'"]),
        ("data.sourcs=x", ["'sourcs' in section [data]", "'sources'"]),
        ("dat.sources=x", ["section 'dat'", "'data'", "model, data, "]),
        ("preset.x=1", ["key 'preset'"]),
        ("model.paht=base", ["'path'", "path, hf_config, vocab_size, "]),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_name(
    tmp_path: Path, override: str, parts: list[str]
) -> None:
    with refused("config_unknown_key", *parts):
        load(write(tmp_path), [override])


@pytest.mark.parametrize(
    ("line", "section", "remedy"),
    [
        ("vocab_size = 256", "model", "model.path or model.hf_config"),
        ("memory_mib = 512", "planner", PRESET_REMEDY),
        ('[output]\ndirectory = "runs/test"', "output", PRESET_REMEDY),
    ],
)
def test_a_missing_key_is_named(tmp_path: Path, line: str, section: str, remedy: str) -> None:
    assert line in MINIMAL
    with refused("config_missing_key", f"section [{section}]", remedy):
        load(write(tmp_path, MINIMAL.replace(line, "")), [])


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_has_the_keys_that_messages_advise(tmp_path: Path, preset: str) -> None:
    model_data_train = MINIMAL[: MINIMAL.index("[planner]")]
    load(write(tmp_path, model_data_train), preset=preset)


def test_the_effective_configuration_comes_back_from_json(tmp_path: Path) -> None:
    config = load(write(tmp_path), [])
    dumped = json.loads(json.dumps(to_dict(config)))
    assert dumped["train"] == {
        "steps": 10,
        "epochs": None,
        "seed": 0,
        "device": "auto",
        "attention": "auto",
        "deterministic": False,
        "dtype": "float32",
        "compile": False,
        "float8": False,
        "float8_messages": False,
        "symmetric_memory": False,
        "sharding": "none",
        "stage_layers": [],
        "frozen": [],
        "evaluate_every": None,
        "evaluate_sequences": None,
        "timeout_s": 600.0,
        "start_timeout_s": None,
        "step_timeout_s": None,
        "silence_s": 60.0,
        "exchange_channels": 8,
        "stage_channels": 16,
        "loss_jump": 2.0,
        "norm_jump": 10.0,
        "on_jump": "report",
        "trace_step": None,
        "profile_steps": [],
    }
    assert from_table(RunConfig, dumped, "") == config


@pytest.mark.parametrize("name", ["train.evaluate_every", "train.trace_step", "checkpoint.every_steps"])
def test_an_interval_of_0_turns_off_a_periodic_action(tmp_path: Path, name: str) -> None:
    section, key = name.split(".")
    path, asked = write(tmp_path), ["data.held_out=0.1", f"{name}=3"]
    kept, taken_back = (
        getattr(load(path, overrides), section) for overrides in (asked, [*asked, f"{name}=0"])
    )
    assert (getattr(kept, key), getattr(taken_back, key)) == (3, None)


def test_the_best_checkpoint_is_kept_where_each_has_an_evaluation(tmp_path: Path) -> None:
    asked = ["checkpoint.keep_best=true", "checkpoint.every_steps=6", "train.evaluate_every=3"]
    assert load(write(tmp_path), [*asked, "data.held_out=0.1"]).checkpoint.keep_best
