"""No damaged file of a data set or an index gives a traceback, a hang, or a silently wrong number.

The file is either refused with a code, or read; where a digest covers it, its content is what was written.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from damaged.damage import CASES, TIMEOUT_S, Damaged, accepted
from data.index.small_index import job_of, texts_of, write_documents, write_lines
from data.records import test_record_files
from data.small_tokenizer import write_tokenizer
from data.sources.test_token_files import write_megatron
from hydraulis import pack_windows
from hydraulis.batching import open_length_index, open_lengths
from hydraulis.batching.items.length_index import write_length_index
from hydraulis.data.index.builder import ensure_index
from hydraulis.data.index.files import open_index
from hydraulis.data.records import json_lines
from hydraulis.data.records.record_file import open_records
from hydraulis.data.sources.source_files import find_source_files
from hydraulis.data.sources.token_files import open_token_file
from hydraulis.data.tokenization.tokenizer import load_tokenizer
from hydraulis.data.tokens import plain_tokens
from hydraulis.planner.lengths import map_lengths, read_lengths

pytestmark = pytest.mark.timeout(TIMEOUT_S)


def test_an_index_is_read_as_it_was_built_or_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    texts = write_documents(tmp_path / "data")
    whole = ensure_index(job_of(tmp_path / "data"), tmp_path / "index", 1)

    def read(folder: Path) -> None:
        corpus = open_index(folder)
        assert texts_of(corpus) == texts
        assert corpus.target_counts.tolist() == [len(text) - 1 for text in texts]

    results = [accepted(lambda: read(folder)) for folder, _ in Damaged(whole, tmp_path, 6)]  # noqa: B023
    assert sum(results) < len(results) / 2


@pytest.mark.parametrize("kind", ["numpy", "megatron"])
def test_a_file_of_tokens_is_read_or_refused(tmp_path: Path, kind: str) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    if kind == "megatron":
        write_megatron(whole)
    else:
        np.save(whole / "x.npy", np.arange(40, dtype=np.uint16).reshape(4, 10))
    name = "x.idx" if kind == "megatron" else "x.npy"

    def read(folder: Path) -> None:
        corpus = open_token_file(folder / name)
        for index in range(min(20, len(corpus))):
            assert len(plain_tokens(corpus.read(index))) == corpus.lengths[index] > 0

    results = [accepted(lambda: read(folder)) for folder, _ in Damaged(whole, tmp_path, 7)]  # noqa: B023
    assert 0 < sum(results) < len(results)


RECORDS: dict[str, dict[str, Any]] = {
    "text": {"text": "the fox"},
    "completion": {"prompt": "a", "completion": "bc"},
    "chat": {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    "tokens": {"input_ids": [1, 2, 3], "labels": [-100, 2, 3]},
}


@pytest.mark.parametrize("kind", RECORDS)
def test_a_file_of_records_is_indexed_or_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "whole").mkdir()
    write_lines(tmp_path / "whole" / "a.jsonl", [RECORDS[kind]] * 3)
    results = []
    # Each case waits for the disk several times.
    for folder, path in Damaged(tmp_path / "whole", tmp_path, 11, CASES // 4):
        job = job_of(
            folder,
            paths=(path,),
            format=kind,
            fields=tuple(RECORDS[kind]),
            chat_template="chatml" if kind == "chat" else "",
            broken_records="skip",
        )

        def index() -> None:
            corpus = open_index(ensure_index(job, folder / "index", 1))  # noqa: B023
            for number in range(len(corpus)):
                corpus.read(number)

        results.append(accepted(index))
    # Broken records are skipped, so most files are read.
    assert any(results)


def write_csv(folder: Path) -> Path:
    path = folder / "rows.csv"
    rows = [f'{row["other"]},"{row["text"]}"\n' for row in test_record_files.ROWS]
    path.write_text("".join(["other,text\n", *rows]), encoding="utf-8")
    return path


@pytest.mark.parametrize("write", [*test_record_files.WRITERS, write_csv])
def test_a_file_of_each_format_is_read_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: test_record_files.Writer
) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    name = write(whole).name
    for extra in set(whole.iterdir()) - {whole / name}:
        extra.unlink()
    monkeypatch.setattr(json_lines, "PIECE_BYTES", 100)

    def read(path: Path, *fields: str) -> None:
        file = open_records(path, fields)
        for piece in file.pieces():
            for where, _ in file.records(*piece):
                file.place(where)

    fields = ("other", "text") if write is write_csv else ("text", "ids", "messages", "other")
    results = [accepted(lambda: read(folder / name, *fields)) for folder, _ in Damaged(whole, tmp_path, 12)]  # noqa: B023
    assert 0 < sum(results) < len(results)


def test_an_interrupted_index_is_continued_as_it_was_begun_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_lines, "PIECE_BYTES", 1_000)
    (tmp_path / "data").mkdir()
    texts = write_documents(tmp_path / "data")
    job = job_of(tmp_path / "data")

    def interrupted(share: float) -> None:
        if share > 0.7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_index(job, tmp_path / "whole", 1, interrupted)

    def read(directory: Path) -> None:
        corpus = open_index(ensure_index(job, directory, 1))
        assert texts_of(corpus) == texts
        assert corpus.lengths.tolist() == [len(text) for text in texts]
        assert corpus.target_counts.tolist() == [len(text) - 1 for text in texts]

    results = [
        accepted(lambda: read(folder))  # noqa: B023
        for folder, _ in Damaged(tmp_path / "whole", tmp_path, 13, CASES // 4)
    ]
    assert sum(results) < len(results)
    read(tmp_path / "whole")


def test_a_tokenizer_is_read_or_refused(tmp_path: Path) -> None:
    whole = write_tokenizer(tmp_path / "whole", eos_token="</s>", chat_template="{{ messages }}")
    (whole / "chat_template.jinja").write_text(
        "{% for message in messages %}{{ message.content }}{% endfor %}"
    )

    def read(folder: Path) -> None:
        tokenizer = load_tokenizer(str(folder))
        tokenizer.encode("the fox", special=True)
        tokenizer.encode_with_places("naïve 水")
        tokenizer.decode([0, 1, tokenizer.vocab_size - 1])

    results = [accepted(lambda: read(folder)) for folder, _ in Damaged(whole, tmp_path, 14)]  # noqa: B023
    assert 0 < sum(results) < len(results)


def test_a_saved_data_set_is_found_or_refused(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "x.arrow").touch()
    (whole / "state.json").write_text(json.dumps({"_data_files": [{"filename": "x.arrow"}]}) + "\n")
    results = [
        accepted(lambda: find_source_files([str(folder)]))  # noqa: B023
        for folder, _ in Damaged(whole, tmp_path, 15)
    ]
    assert 0 < sum(results) < len(results)


LENGTHS = np.arange(1, 41, dtype=np.int64)


def write_lengths(folder: Path) -> None:
    np.save(folder / "x.npy", LENGTHS)
    (folder / "x.txt").write_text("".join(f"{length}\n" for length in LENGTHS))
    write_lines(folder / "x.jsonl", [{"length": int(length)} for length in LENGTHS])
    table = pyarrow.table({"length": LENGTHS})
    pyarrow.parquet.write_table(table, folder / "x.parquet")
    with pyarrow.ipc.new_file(folder / "x.arrow", table.schema) as writer:
        writer.write_table(table)
    (folder / "data.bin").write_bytes(b"x" * 50)
    write_length_index(
        folder / "data.index", folder / "data.bin", LENGTHS, pack_windows(LENGTHS, window_tokens=100)
    )


def test_lengths_are_read_or_refused(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    write_lengths(whole)

    def read_windows(folder: Path) -> None:
        index = open_length_index(folder / "data.index")
        for number in range(len(index.window_offsets) - 1):
            assert index.lengths[index.window(number)].sum() <= index.window_tokens

    results = []
    for folder, path in Damaged(whole, tmp_path, 16):
        if path.parent != folder or path.name == "data.bin":
            results.append(accepted(lambda: read_windows(folder)))  # noqa: B023
            continue
        field = None if path.suffix in (".npy", ".txt") else "length"
        results.append(accepted(lambda: open_lengths(path, field)))  # noqa: B023
        if path.suffix not in (".parquet", ".arrow"):
            accepted(lambda: read_lengths(path, field))  # noqa: B023
            accepted(lambda: map_lengths(path, field))  # noqa: B023
    assert 0 < sum(results) < len(results)
