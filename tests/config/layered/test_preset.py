from pathlib import Path

import pytest

from config.run_file import MINIMAL, write
from hydraulis import Cluster
from hydraulis.config.layered.layers import PRESETS
from hydraulis.config.run import load
from hydraulis.errors import InvalidInputError
from hydraulis.runtime.planning.run_schemes import named_strategies


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_and_little_else_is_a_configuration(tmp_path: Path, name: str) -> None:
    model = MINIMAL.partition("[data]")[0]
    config = load(write(tmp_path, model + "[train]\nsteps = 1\n"), preset=name)
    assert config.output.directory.endswith(name)
    gpus = {"laptop": 4, "node": 8, "nodes": 128}[name]
    cluster = Cluster(gpus, min(gpus, 8))
    for strategy in named_strategies(config.planner, cluster):
        assert sum(map(len, strategy.place(cluster))) == gpus


def test_checkpoints_that_a_preset_asks_for_are_taken_back_by_0(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert load(path, preset="laptop").checkpoint.every_steps == 100
    assert load(path, ["checkpoint.every_steps=0"], preset="laptop").checkpoint.every_steps is None


def test_a_preset_is_one_of_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="preset = 'big' must be one of 'laptop'") as refusal:
        load(write(tmp_path), preset="big")
    assert str(refusal.value).endswith("; choose one")
    with pytest.raises(InvalidInputError, match=r"; choose one; did you mean 'laptop'\?$"):
        load(write(tmp_path), preset="Labtop")
    assert refusal.value.code == "config_value"
    with pytest.raises(InvalidInputError, match="preset = 3"):
        load(write(tmp_path, "preset = 3\n" + MINIMAL))
    # What is asked for on the command line counts.
    assert load(write(tmp_path, "preset = 3\n" + MINIMAL), preset="laptop").train.steps == 10
