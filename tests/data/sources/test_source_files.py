import json
import os
from pathlib import Path

import pytest

from helpers import refused
from hydraulis.data.sources.source_files import find_source_files
from hydraulis.data.sources.token_files import is_token_file


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_paths_globs_and_either_of_two_files_are_found_once_and_in_order(tmp_path: Path) -> None:
    touch(tmp_path, "b.jsonl", "a.jsonl", "deep/c.parquet", "x.bin", "x.idx", "[1].npy")
    names = ["b.jsonl", "*.jsonl", "**/*.parquet", "x.bin", "x.idx", "[1].npy"]
    found = find_source_files([str(tmp_path / name) for name in names])
    expected = ["b.jsonl", "a.jsonl", "deep/c.parquet", "x.idx", "[1].npy"]
    assert found == [tmp_path / name for name in expected]
    assert [is_token_file(path) for path in found] == [False, False, False, True, True]


def test_a_megatron_data_set_is_found_by_its_name_without_an_ending(tmp_path: Path) -> None:
    touch(tmp_path, "my.corpus_text_document.bin", "my.corpus_text_document.idx")
    found = find_source_files([str(tmp_path / "my.corpus_text_document")])
    assert found == [tmp_path / "my.corpus_text_document.idx"]


def test_a_saved_data_set_gives_its_files_in_its_order(tmp_path: Path) -> None:
    files = ["data-00001-of-00002.arrow", "data-00000-of-00002.arrow"]
    touch(tmp_path, *files)
    state = {"_data_files": [{"filename": name} for name in files], "_format_type": None}
    (tmp_path / "state.json").write_text(json.dumps(state))
    assert find_source_files([str(tmp_path)]) == [tmp_path / name for name in files]
    (tmp_path / "state.json").write_text(json.dumps(state | {"_indices_files": [{"filename": "i.arrow"}]}))
    with refused("data_file_invalid", "flatten_indices()"):
        find_source_files([str(tmp_path)])


def test_a_file_of_several_names_is_found_once_by_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "one.jsonl", "sh/other.jsonl")
    (tmp_path / "link.jsonl").symlink_to("one.jsonl")
    monkeypatch.chdir(tmp_path)
    names = ["one.jsonl", str(tmp_path / "one.jsonl"), "sh/../one.jsonl", "link.jsonl", "sh/*.jsonl"]
    assert find_source_files(names) == [Path("one.jsonl"), Path("sh/other.jsonl")]


@pytest.mark.parametrize(
    ("name", "code", "names"),
    [
        ("*.jsonl", "file_unreadable", "*.jsonl"),
        ("notes.txt", "data_file_invalid", "notes.txt"),
        ("splits", "data_file_invalid", "train, test"),
        ("folder", "data_file_invalid", "folder"),
        ("empty", "data_file_invalid", "empty' is a saved data set without files"),
        ("pipe.csv", "data_file_invalid", "pipe.csv' is no regular file"),
        ("x" * 300, "file_unreadable", "x" * 300 + "' cannot be read (File name too long)"),
    ],
)
def test_other_names_are_refused(tmp_path: Path, name: str, code: str, names: str) -> None:
    touch(tmp_path, "notes.txt", "folder/x.txt", "splits/x", "empty/state.json")
    (tmp_path / "empty" / "state.json").write_text('{"_data_files": []}')
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "splits" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with refused(code, names):
        find_source_files([str(tmp_path / name)])
