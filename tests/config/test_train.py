from pathlib import Path

import pytest

from config.run_file import MINIMAL, write
from hydraulis.config.run import load
from hydraulis.errors import InvalidInputError


def test_steps_or_epochs_say_how_long_a_run_is(tmp_path: Path) -> None:
    assert load(write(tmp_path), ["train.epochs=2"]).train.num_steps == 10
    neither = write(tmp_path, MINIMAL.replace("steps = 10", ""))
    with pytest.raises(InvalidInputError, match=r"train\.steps and train\.epochs are absent") as refusal:
        load(neither)
    assert refusal.value.code == "config_value"
    assert load(neither, ["train.epochs=2"]).train.epochs == 2


def test_stated_layers_of_stages_must_be_a_split_of_the_models(tmp_path: Path) -> None:
    config = load(write(tmp_path), ["train.stage_layers=[[1, 1]]"])
    assert config.train.stage_layers == ((1, 1),)
    for lists, says in (
        ("[[1, 1], [1, 1, 1]]", r"stage_layers\[1\] = \[1, 1, 1\]: these are 3 layers, the model has 2"),
        (
            "[[2]]",
            r"stage_layers\[0\] = \[2\]: one stage has all layers, whatever is stated; leave the list out",
        ),
        ("[[]]", r"stage_layers\[0\] = \[\]: the limit is one layer a stage"),
        ("[[1, 1], [1, 1]]", "one list for each number"),
        ("[[1, 1], [0, 2]]", r"stage_layers\[1\] = \[0, 2\]: the limit is one layer a stage"),
        ("[[-1, 3]]", r"stage_layers\[0\] = \[-1, 3\]: the limits are one layer a stage and 2 in all"),
        ("[[1, 18446744073709551617]]", "the limits are one layer a stage and 2 in all"),
    ):
        with pytest.raises(InvalidInputError, match=says) as refusal:
            load(write(tmp_path), [f"train.stage_layers={lists}"])
        assert refusal.value.code == "scheme_model_mismatch"
    with pytest.raises(InvalidInputError, match="num_hidden_layers is 1,099,511,627,776") as refusal:
        load(write(tmp_path), ["train.stage_layers=[[1, 1]]", f"model.num_hidden_layers={2**40}"])
    assert refusal.value.code == "model_invalid"
