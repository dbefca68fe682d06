"""Every example of docs/data.md, run."""

import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from data.sources.test_token_files import SEQUENCES, write_megatron
from helpers import ROOT, at_least
from hydraulis.cli.main import main
from hydraulis.config.data import DataConfig, RecordFormat, TooLong
from hydraulis.config.layered.table import from_table
from hydraulis.data.open import open_sources
from hydraulis.data.sampling.run_sampler import MAX_EPOCHS
from hydraulis.data.sources.prepare import prepare_sources

TEXT = (ROOT / "docs/data.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"(?:^`([\w.]+)`:\n\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = at_least(15, BLOCK.findall(TEXT))


def of_kind(kind: str) -> list[str]:
    return [body for _, found, body in BLOCKS if found == kind]


@pytest.fixture
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, kind, body in BLOCKS:
        if name and kind in ("jsonl", "jinja"):
            Path(name).write_text(body, encoding="utf-8")
    write_megatron(tmp_path, SEQUENCES)
    for suffix in (".bin", ".idx"):
        (tmp_path / f"x{suffix}").rename(f"corpus{suffix}")
    for body in at_least(3, of_kind("python")):
        exec(compile(body, "docs/data.md", "exec"), {})


@pytest.mark.usefixtures("_files")
def test_every_configuration_gives_sequences() -> None:
    formats = set()
    for body in at_least(8, of_kind("toml")):
        (section,) = tomllib.loads(body).values()
        config = from_table(DataConfig, section | {"index_processes": 1}, "data")
        data = open_sources(config, prepare_sources(config))
        assert len(data.train) > 0, body
        assert (data.held_out is not None) == ("held_out" in body or "validation" in body)
        formats |= {source.format for source in config.sources}
    assert formats == set(get_args(RecordFormat))


@pytest.mark.usefixtures("_files")
def test_every_configuration_alone_can_be_analyzed(capsys: pytest.CaptureFixture[str]) -> None:
    for body in at_least(8, of_kind("toml")):
        Path("data.toml").write_text(body, encoding="utf-8")
        options = ["--count", "1", "--set", "data.index_processes=1", "--set", "data.tokens_per_batch=8"]
        assert main(["analyze", "data.toml", *options]) == 0, (body, capsys.readouterr().err)


@pytest.mark.usefixtures("_files")
def test_batches_as_large_as_those_of_the_page_repeat_its_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert f"more than {MAX_EPOCHS}, as with a file as small as those above and 16,384 tokens" in TEXT
    for body in at_least(5, [body for body in of_kind("toml") if ".jsonl" in body]):
        Path("data.toml").write_text(body, encoding="utf-8")
        assert main(["analyze", "data.toml", "--count", "1", "--set", "data.index_processes=1"]) == 0
        assert "data.tokens_per_batch = 16,384: " in capsys.readouterr().err, body


def test_the_page_names_every_key_and_choice() -> None:
    keys = [field for field in DataConfig.__dataclass_fields__ if field != "source"]
    for word in at_least(15, [*keys, *get_args(TooLong), *get_args(RecordFormat)]):
        assert re.search(rf"\b{word}\b", TEXT), word
