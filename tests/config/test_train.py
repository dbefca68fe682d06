from pathlib import Path

import pytest

from config.run_file import MINIMAL, write
from helpers import refused
from hydraulis.config.run import load


def test_steps_or_epochs_set_the_length_of_a_run(tmp_path: Path) -> None:
    assert load(write(tmp_path), ["train.epochs=2"]).train.num_steps == 10
    neither = write(tmp_path, MINIMAL.replace("steps = 10", ""))
    with refused("config_value", "train.steps", "train.epochs"):
        load(neither)
    assert load(neither, ["train.epochs=2"]).train.epochs == 2


def test_stated_layers_of_stages_must_be_a_split_of_the_models(tmp_path: Path) -> None:
    config = load(write(tmp_path), ["train.stage_layers=[[1, 1]]"])
    assert config.train.stage_layers == ((1, 1),)
    for lists, parts in (
        ("[[1, 1], [1, 1, 1]]", ["stage_layers[1] = [1, 1, 1]", "3 layers", "2"]),
        ("[[2]]", ["stage_layers[0] = [2]"]),
        ("[[]]", ["stage_layers[0] = []"]),
        ("[[1, 1], [1, 1]]", ["stage_layers"]),
        ("[[1, 1], [0, 2]]", ["stage_layers[1] = [0, 2]"]),
        ("[[-1, 3]]", ["stage_layers[0] = [-1, 3]"]),
        ("[[1, 9223372036854775807]]", ["2 in all"]),
    ):
        with refused("scheme_model_mismatch", *parts):
            load(write(tmp_path), [f"train.stage_layers={lists}"])
    with refused("config_value", "train.stage_layers[0][1] = 18446744073709551617", 2**63 - 1):
        load(write(tmp_path), ["train.stage_layers=[[1, 18446744073709551617]]"])
    with refused("model_invalid", "num_hidden_layers", "1,099,511,627,776"):
        load(write(tmp_path), ["train.stage_layers=[[1, 1]]", f"model.num_hidden_layers={2**40}"])


@pytest.mark.parametrize("name", ["timeout_s", "silence_s"])
def test_a_time_beyond_the_range_of_a_clock_is_refused(tmp_path: Path, name: str) -> None:
    assert getattr(load(write(tmp_path), [f"train.{name}=1e7"]).train, name) == 1e7
    for value in ("1e300", "inf", "nan", "1e8"):
        with refused("config_value", f"train.{name} = ", "below 100,000,000"):
            load(write(tmp_path), [f"train.{name}={value}"])


@pytest.mark.parametrize("name", ["exchange_channels", "stage_channels"])
def test_channels_are_numbers_that_nccl_does_not_round(tmp_path: Path, name: str) -> None:
    assert getattr(load(write(tmp_path), [f"train.{name}=4"]).train, name) == 4
    for value in (0, 3, 64):
        with refused("config_value", f"train.{name} = {value}", "1, 2, 4, 8, 16, 32"):
            load(write(tmp_path), [f"train.{name}={value}"])


@pytest.mark.parametrize(("device", "dtype"), [("cuda", "bfloat16"), ("cpu", "float32"), ("auto", "float32")])
def test_the_type_of_a_cuda_run_is_bfloat16_unless_one_is_set(
    tmp_path: Path, device: str, dtype: str
) -> None:
    assert load(write(tmp_path), [f"train.device={device}"]).train.dtype == dtype
    set_to = load(write(tmp_path), [f"train.device={device}", "train.dtype=float64"])
    assert set_to.train.dtype == "float64"


@pytest.mark.parametrize(("device", "compiles"), [("cuda", True), ("cpu", False), ("auto", False)])
def test_a_cuda_run_compiles_unless_it_is_set(tmp_path: Path, device: str, *, compiles: bool) -> None:
    assert load(write(tmp_path), [f"train.device={device}"]).train.compile is compiles
    for value in (True, False):
        given = [f"train.device={device}", f"train.compile={str(value).lower()}"]
        assert load(write(tmp_path), given).train.compile is value


def test_float8_needs_bfloat16(tmp_path: Path) -> None:
    with refused("config_value", "train.float8 = true", "train.dtype = 'bfloat16'", "'float32'"):
        load(write(tmp_path), ["train.float8=true"])
    assert load(write(tmp_path), ["train.float8=true", "train.dtype=bfloat16"]).train.float8
    assert load(write(tmp_path), ["train.float8=true", "train.device=cuda"]).train.float8


@pytest.mark.parametrize("word", ["gpu", "nvidia", "cuda:0", "GPU"])
def test_other_words_for_cuda_suggest_it(tmp_path: Path, word: str) -> None:
    with refused("config_value", "choose one; did you mean 'cuda'?"):
        load(write(tmp_path), [f"train.device={word}"])
