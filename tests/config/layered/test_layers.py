from pathlib import Path

import pytest

from config.run_file import MINIMAL, field_names, write
from hydraulis.config.run import load, load_with_origins
from hydraulis.errors import InvalidInputError


def test_a_section_that_is_no_table_is_refused_even_with_an_override(tmp_path: Path) -> None:
    text = "train = 3\n" + MINIMAL.replace("[train]\nsteps = 10\n", "")
    with pytest.raises(InvalidInputError, match=r"train = 3 .* must be a table") as refusal:
        load(write(tmp_path, text), ["train.steps=1"])
    assert refusal.value.code == "config_type"


def test_a_syntax_error_names_the_file_and_the_line(tmp_path: Path) -> None:
    path = write(tmp_path, "[train]\nsteps = 10\nseed = = 3\n")
    with pytest.raises(InvalidInputError, match=r"run.toml.* line 3") as refusal:
        load(path, [])
    assert refusal.value.code == "config_syntax"
    assert str(path) in str(refusal.value)


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b"# \xff\n" + MINIMAL.encode())
    with pytest.raises(InvalidInputError, match="must be TOML in UTF-8") as refusal:
        load(path, [])
    assert refusal.value.code == "config_syntax"


@pytest.mark.parametrize("name", ["absent.toml", "."])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with pytest.raises(InvalidInputError, match="must be a file that can be read") as refusal:
        load(path, [])
    assert refusal.value.code == "config_file"
    assert str(path) in str(refusal.value)


def test_each_value_says_where_it_comes_from(tmp_path: Path) -> None:
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
        # It was taken out by what says the same.
        "data.tokens_per_batch": "default",
    }
    assert {name: loaded.origins[name] for name in wanted} == wanted
    assert list(loaded.origins) == field_names()
