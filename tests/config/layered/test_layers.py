from pathlib import Path

import pytest

from config.run_file import MINIMAL, field_names, write
from helpers import refused
from hydraulis import HydraulisError
from hydraulis.config.layered.layers import PRESETS
from hydraulis.config.run import load, load_with_origins


def test_a_section_that_is_no_table_is_refused_even_with_an_override(tmp_path: Path) -> None:
    text = "train = 3\n" + MINIMAL.replace("[train]\nsteps = 10\n", "")
    with refused("config_value", "train = 3 ", "a table"):
        load(write(tmp_path, text), ["train.steps=1"])


def test_a_syntax_error_names_the_file_and_the_line(tmp_path: Path) -> None:
    path = write(tmp_path, "[train]\nsteps = 10\nseed = = 3\n")
    with refused("config_syntax", path, "line 3"):
        load(path, [])


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b"# \xff\n" + MINIMAL.encode())
    with refused("config_syntax", path, "UTF-8"):
        load(path, [])


@pytest.mark.parametrize("name", ["absent.toml", "."])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with refused("file_unreadable", path):
        load(path, [])


def test_each_value_has_its_origin(tmp_path: Path) -> None:
    text = 'preset = "laptop"\n' + MINIMAL.replace('[output]\ndirectory = "runs/test"', "")
    path = write(tmp_path, text)
    loaded = load_with_origins(path, ["train.seed=3", "data.sequences_per_batch=5"])
    assert loaded.config.output.directory == "runs/laptop"
    wanted = {
        "output.directory": "preset laptop",
        "train.steps": str(path),
        "train.seed": "--set",
        "train.epochs": "default",
        "data.sequences_per_batch": "--set",
        # The alternative key removed it.
        "data.tokens_per_batch": "default",
    }
    assert {name: loaded.origins[name] for name in wanted} == wanted
    assert list(loaded.origins) == field_names()


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_and_little_else_is_a_configuration(tmp_path: Path, name: str) -> None:
    model = MINIMAL.partition("[data]")[0]
    config = load(write(tmp_path, model + "[train]\nsteps = 1\n"), preset=name)
    assert config.output.directory.endswith(name)
    # On CUDA the device's memory is the default.
    stated = ("auto", 2048) if name == "laptop" else ("cuda", None)
    assert (config.train.device, config.planner.memory_mib) == stated
    assert config.planner.is_search


def test_named_schemes_replace_the_kinds_of_checkpointing_that_a_preset_searches(tmp_path: Path) -> None:
    path = write(tmp_path)
    # The file lists strategies.
    assert load(path, preset="node").planner.checkpointing == ("none",)
    search = load(path, ['planner.strategies=["search"]'], preset="node").planner
    assert search.checkpointing == ("none",)
    with refused("config_value", "planner.checkpointing = ['full']"):
        load(path, ['planner.checkpointing=["full"]'], preset="node")
    plain = write(tmp_path, MINIMAL.replace('strategies = ["1x<tp2>+2x<tp1>", "4x<tp1>"]\n', ""))
    assert load(plain, preset="node").planner.checkpointing == ("selective", "full")
    again = load(plain, ['planner.strategies=["search"]'], preset="node").planner
    assert again.checkpointing == ("selective", "full")
    named = load(plain, ['planner.schemes=["<tp2,full>"]'], preset="node").planner
    assert (named.schemes, named.checkpointing) == (("<tp2,full>",), ("none",))


def test_an_interval_of_0_turns_off_the_checkpoints_of_a_preset(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert load(path, preset="laptop").checkpoint.every_steps == 100
    assert load(path, ["checkpoint.every_steps=0"], preset="laptop").checkpoint.every_steps is None


def test_an_unknown_preset_is_refused(tmp_path: Path) -> None:
    with refused("config_value", "preset = 'big'", "'laptop', 'node', 'nodes'"):
        load(write(tmp_path), preset="big")
    with refused("config_value", "preset = 'Labtop'", "'laptop'"):
        load(write(tmp_path), preset="Labtop")
    with refused("config_value", "preset = 3"):
        load(write(tmp_path, "preset = 3\n" + MINIMAL))
    # The command line overrides the file.
    assert load(write(tmp_path, "preset = 3\n" + MINIMAL), preset="laptop").train.steps == 10


def test_a_file_that_is_nested_without_end_or_has_an_endless_number_is_refused(tmp_path: Path) -> None:
    for value, code in (("[" * 2_000 + "]" * 2_000, "config_syntax"), ("9" * 5_000, "config_value")):
        path = write(tmp_path, f"x = {value}\n{MINIMAL}")
        with refused("config_syntax", path, "must be TOML"):
            load(path, [])
        with refused(code, "train.steps"):
            load(write(tmp_path), [f"train.steps={value}"])


@pytest.mark.parametrize("value", [10**400, 2**63, -(2**63)])
def test_a_number_beyond_64_bits_is_refused(tmp_path: Path, value: int) -> None:
    for key in ("train.steps", "data.tokens_per_batch", "optimizer.learning_rate", "planner.memory_mib"):
        with refused("config_value", f"{key} = {str(value)[:20]}", 2**63 - 1):
            load(write(tmp_path), [f"{key}={value}"])


def test_a_value_that_a_message_repeats_is_cut(tmp_path: Path) -> None:
    for value in (f"'{'x' * 100_000}'", f"[{'1, ' * 100_000}1]", "0x" + "f" * 100_000, "[" * 90 + "]" * 90):
        with pytest.raises(HydraulisError) as caught:
            load(write(tmp_path), [f"train.steps={value}"])
        assert caught.value.code == "config_value"
        assert 50 < len(str(caught.value)) < 1_000
