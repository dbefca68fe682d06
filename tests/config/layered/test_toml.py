"""A configuration printed as TOML is read back as the same configuration."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.run_file import MINIMAL, write
from hydraulis.config.layered.toml import to_toml, toml_value
from hydraulis.config.run import load, load_with_origins

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXT,
)
KEYS = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


@given(VALUES)
def test_a_written_value_is_read_back_equal(value: object) -> None:
    assert tomllib.loads(f"value = {toml_value(value)}")["value"] == value


def test_values_without_a_form_in_toml_are_refused() -> None:
    with pytest.raises(TypeError, match="TOML"):
        toml_value(object())
    assert toml_value({"given": 1, "absent": None}) == "{ given = 1 }"


SOURCES = """
[[data.sources]]
files = ["a\\"b.jsonl", "c/*.parquet"]
weight = 1
[[data.sources]]
files = ["d.jsonl"]
format = "chat"
weight = 0.5
"""


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ('model.rope_scaling={rope_type="linear", factor=2}',),
        ("data.sequences_per_batch=4", "checkpoint.every_steps=3", "optimizer.eps=1e-30"),
    ],
)
@pytest.mark.parametrize("preset", [None, "node"])
def test_a_written_configuration_is_read_back_equal(
    tmp_path: Path, overrides: tuple[str, ...], preset: str | None
) -> None:
    path = write(tmp_path, MINIMAL + SOURCES)
    loaded = load_with_origins(path, overrides, preset)
    text = to_toml(loaded)
    assert load(write(tmp_path, text)) == loaded.config
    lines = [line for line in text.splitlines() if " = " in line and not line.startswith((" ", "#"))]
    assert len(lines) > 40
    assert [line for line in lines if "  # " not in line and not line.endswith("[")] == []


def test_a_name_that_breaks_lines_does_not_break_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "two\nlines"
    folder.mkdir()
    loaded = load_with_origins(write(folder))
    assert load(write(tmp_path, to_toml(loaded))) == loaded.config
