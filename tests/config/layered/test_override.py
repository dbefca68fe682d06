from pathlib import Path

import pytest

from config.run_file import write
from helpers import refused
from hydraulis.config.run import load
from hydraulis.config.train import TrainConfig


def test_overrides_replace_and_add_keys(tmp_path: Path) -> None:
    overrides = [
        "train.steps=20",
        ' train.dtype = "float64" ',
        "optimizer.betas=[0.8, 0.9]",
        "train.steps=30",
    ]
    config = load(write(tmp_path), overrides)
    assert config.train == TrainConfig(steps=30, dtype="float64")
    assert config.optimizer.betas == (0.8, 0.9)


def test_an_override_may_hold_an_equals_sign(tmp_path: Path) -> None:
    assert load(write(tmp_path), ['output.directory="a=b.c"']).output.directory == "a=b.c"


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("train.steps", "section.key=value"),
        ("steps=3", "section.key=value"),
        (".steps=3", "section.key=value"),
        ("train.=3", "section.key=value"),
        ("train.steps=", "TOML"),
        ('output.directory="runs', "TOML"),
        ("train.steps=3\nseed=4", "one value"),
    ],
)
def test_a_text_of_another_form_is_refused(tmp_path: Path, override: str, part: str) -> None:
    with refused("config_syntax", repr(override)[1:-1].split("\\n")[0], part):
        load(write(tmp_path), [override])


@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        ("planner.memory_mib=abc", "an integer"),
        ("train.seed=1 2", "an integer"),
        ("train.deterministic=yes", "a boolean"),
        ("optimizer.learning_rate=1e-3x", "a float"),
        ("optimizer.betas=x", "an array of 2 values"),
    ],
)
def test_a_word_in_place_of_another_type_is_refused_with_the_type(
    tmp_path: Path, override: str, wanted: str
) -> None:
    key, _, value = override.partition("=")
    with refused("config_value", f"{key} = '{value}' ", wanted):
        load(write(tmp_path), [override])


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("planner.profile=p.json", "p.json"),
        ('planner.profile="p.json"', "p.json"),
        ("planner.profile='p q.json'", "p q.json"),
        ("planner.profile=a=b", "a=b"),
        ("planner.profile=7", "7"),
        ("planner.profile=", ""),
        ("planner.strategies=1x<tp2,pp2>", ("1x<tp2,pp2>",)),
        ("planner.strategies=2x<1>; 1x<tp2>", ("2x<1>", "1x<tp2>")),
        ('planner.strategies=["2x<1>", "1x<tp2>"]', ("2x<1>", "1x<tp2>")),
        ('planner.strategies="2x<1>"', ("2x<1>",)),
        ("planner.checkpointing=full", ("full",)),
        ("planner.checkpointing=none; full", ("none", "full")),
        ('planner.checkpointing="selective"', ("selective",)),
        ("planner.context=ring", "ring"),
    ],
)
def test_a_string_needs_no_quotes(tmp_path: Path, override: str, value: object) -> None:
    planner = load(write(tmp_path), ["planner.strategies=search", override]).planner
    assert getattr(planner, override.partition("=")[0].removeprefix("planner.")) == value


def test_a_choice_without_quotes_is_refused_with_the_choices(tmp_path: Path) -> None:
    with refused("config_value", "train.dtype = 'int8'", "'float32'"):
        load(write(tmp_path), ["train.dtype=int8"])
