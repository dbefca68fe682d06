"""Broken records are reported together, or left out and counted."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from data.index.small_index import counted_pieces, job_of, texts_of, write_documents, write_lines
from helpers import refused
from hydraulis.data.index import broken_records
from hydraulis.data.index.builder import ensure_index
from hydraulis.data.index.files import open_index, partial_extent
from hydraulis.errors import InvalidInputError

SKIP = 'data.broken_records = "skip" (--broken-records skip)'


@pytest.mark.usefixtures("_small_pieces")
@pytest.mark.parametrize("processes", [1, 2])
def test_a_record_that_is_refused_is_named_by_file_and_line(tmp_path: Path, processes: int) -> None:
    write_documents(tmp_path)
    with (tmp_path / "b.jsonl").open("a") as file:
        file.write('{"text": 3}\n')
    with refused("record_malformed", tmp_path / "b.jsonl", "line 101", "'text'", SKIP):
        ensure_index(job_of(tmp_path), tmp_path / "index", processes)
    # Finished pieces are kept.
    (folder,) = (tmp_path / "index").iterdir()
    partial = partial_extent(folder)
    assert partial is not None
    assert partial.pieces > 0


@pytest.mark.usefixtures("_small_pieces")
@pytest.mark.parametrize("processes", [1, 2])
def test_refused_records_are_reported_together(tmp_path: Path, processes: int) -> None:
    write_documents(tmp_path)
    with (tmp_path / "a.jsonl").open("a") as file:
        for number in range(103, 143):
            file.write('{"text": "good"}\n\n' if number % 2 else f'{{"text": {number}}}\n')
        file.write('{"text": "the last" * 100}\n{"txt": "very"}\n')
    # Other files are not reported.
    (tmp_path / "b.jsonl").write_text("no JSON\n")
    lines = ((103 + 3 * n, 104 + 2 * n) for n in range(10))
    listed = [f"line {line}: field 'text' has {value} " for line, value in lines]
    remedies = ["and 12 more; ", "correct the record", SKIP]
    with refused("record_malformed", tmp_path / "a.jsonl", "22 broken records", *listed, *remedies):
        ensure_index(job_of(tmp_path), tmp_path / "index", processes)


def write_columns(path: Path, texts: Sequence[str | None]) -> Path:
    table = pyarrow.table({"text": texts})
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path, row_group_size=4)
    else:
        with pyarrow.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=4)
    return path


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
def test_refused_rows_are_reported_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("hydraulis.data.records.arrow._PIECE_ROWS", 4)
    path = write_columns(tmp_path / name, ["ab", "cd", None, "ef", "gh", None, "ij"])
    assert job_of(tmp_path, paths=(path,)).pieces() == [(0, 0, 4), (0, 4, 7)]
    with refused("record_malformed", path, "2 broken records", "row 2: ", "also row 5"):
        ensure_index(job_of(tmp_path, paths=(path,)), tmp_path / "index", 1)


@pytest.mark.usefixtures("_small_pieces")
def test_the_scan_for_further_records_has_a_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_documents(tmp_path)
    path = tmp_path / "a.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    lines[20] = lines[22] = lines[99] = "[]\n"
    path.write_text("".join(lines))
    listed = ["line 21 is no JSON object", "also line 23, line 100"]
    with refused("record_malformed", path, "3 broken records", *listed):
        ensure_index(job_of(tmp_path), tmp_path / "index", 1)
    monkeypatch.setattr(broken_records, "SCAN_S", 0.0)
    with refused("record_malformed", path, listed[0], "line 22", "0 s", SKIP):
        ensure_index(job_of(tmp_path), tmp_path / "index", 1)


def test_each_remedy_is_given_once(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "a"}\n{"text": 3}\n[]\n{"text": 4}\n{"txt\n')
    with pytest.raises(InvalidInputError) as refusal:
        ensure_index(job_of(tmp_path, paths=(path,)), tmp_path / "index", 1)
    message = str(refusal.value)
    assert "4 broken records" in message
    assert "line 5 is no JSON (Unterminated string starting, column 2); " in message
    assert message.count("correct the record") == message.count("write one object per line") == 1
    assert message.index("line 5") < message.index("correct the record") < message.index("write one object")
    assert message.index("write one object") < message.index(SKIP)


@pytest.mark.usefixtures("_small_pieces")
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("record", ['{"txt": "a"}', '{"text": 3}'])
def test_a_field_that_is_wrong_everywhere_is_reported_once_without_advice_to_skip(
    tmp_path: Path, processes: int, record: str
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(f"{record}\n" * 120)
    with pytest.raises(InvalidInputError) as refusal:
        ensure_index(job_of(tmp_path, paths=(path,)), tmp_path / "index", processes)
    message = str(refusal.value)
    assert "120" in message
    assert "line 1" in message
    assert message.count("line ") == message.count("'text'") == 1
    assert SKIP not in message


def test_records_with_the_same_cause_are_reported_together(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.jsonl", [{"text": "a"}, *[{"txt": "a"}] * 3, {"text": 3}])
    listed = ["4 broken records", "line 2 has no field 'text', its fields are txt (also line 3, line 4)"]
    with refused("record_malformed", *listed, "line 5", "'text'", 3, SKIP):
        ensure_index(job_of(tmp_path, paths=(path,)), tmp_path / "index", 1)


def test_a_file_with_a_single_broken_record_gets_no_advice_to_skip(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.jsonl", [{"txt": "a"}])
    with pytest.raises(InvalidInputError) as refusal:
        ensure_index(job_of(tmp_path, paths=(path,)), tmp_path / "index", 1)
    assert SKIP not in str(refusal.value)


def write_broken(folder: Path) -> list[str]:
    """Write the documents with broken records among them, 12 in the first file and 3 in the second."""
    texts = write_documents(folder)
    for name, number in (("a", 12), ("b", 3)):
        path = folder / f"{name}.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        for place in range(number):
            lines.insert(40 + 5 * place, ("no JSON\n", '{"text": 3}\n', '{"txt": "a"}\n')[place % 3])
        path.write_text("".join(lines))
    return texts


@pytest.mark.usefixtures("_small_pieces")
@pytest.mark.parametrize("processes", [1, 2])
def test_broken_records_are_left_out_and_counted_with_skip(tmp_path: Path, processes: int) -> None:
    texts = write_broken(tmp_path)
    corpus = open_index(ensure_index(job_of(tmp_path, broken_records="skip"), tmp_path / "index", processes))
    assert texts_of(corpus) == texts
    assert corpus.left_out == {"documents_without_target": 0, "broken_records": 15}
    assert len(corpus.first_broken) == 10
    first, second = corpus.first_broken[:2]
    assert first.startswith(f"file '{tmp_path}/a.jsonl', line 41 is no JSON (")
    assert second.startswith(f"file '{tmp_path}/a.jsonl', line 46: field 'text' has 3 ")


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
def test_broken_rows_are_left_out_and_counted_with_skip(tmp_path: Path, name: str) -> None:
    path = write_columns(tmp_path / name, ["ab", "cd", None, "ef", "gh", None, "ij"])
    job = job_of(tmp_path, paths=(path,), broken_records="skip")
    corpus = open_index(ensure_index(job, tmp_path / "index", 1))
    assert texts_of(corpus) == ["ab", "cd", "ef", "gh", "ij"]
    assert [place.split(":")[0] for place in corpus.first_broken] == [
        f"file '{path}', row 2",
        f"file '{path}', row 5",
    ]


@pytest.mark.usefixtures("_small_pieces")
def test_a_run_that_skips_records_continues_the_index_of_one_that_refused_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = write_broken(tmp_path)
    with refused("record_malformed", tmp_path / "a.jsonl", "12 broken records"):
        ensure_index(job_of(tmp_path), tmp_path / "index", 1)
    (folder,) = (tmp_path / "index").iterdir()
    partial = partial_extent(folder)
    assert partial is not None
    assert partial.pieces > 0
    read = counted_pieces(monkeypatch)
    job = job_of(tmp_path, broken_records="skip")
    assert ensure_index(job, tmp_path / "index", 1) == folder
    assert read == job.pieces()[partial.pieces :]
    assert texts_of(open_index(folder)) == texts


@pytest.mark.usefixtures("_small_pieces")
def test_an_index_without_the_broken_records_is_refused_where_they_count(tmp_path: Path) -> None:
    write_broken(tmp_path)
    job = job_of(tmp_path)

    def refuse() -> None:
        parts = [
            "15 broken records",
            tmp_path / "a.jsonl",
            "line 41 is ",
            "and 5 more",
            'data.broken_records = "skip"',
        ]
        with refused("record_malformed", *parts):
            ensure_index(job, tmp_path / "index", 1)

    def interrupted(share: float) -> None:
        if share > 0.99:
            raise KeyboardInterrupt

    # An interrupted index is refused like a complete one.
    with pytest.raises(KeyboardInterrupt):
        ensure_index(replace(job, broken_records="skip"), tmp_path / "index", 1, interrupted)
    refuse()
    ensure_index(replace(job, broken_records="skip"), tmp_path / "index", 1)
    refuse()


def test_files_of_broken_records_alone_are_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.jsonl", [{"txt": "a"}] * 120)
    job = job_of(tmp_path, paths=(path,), broken_records="skip")
    with refused("record_malformed", path, "no readable record, 120 are broken", "line 1", "'text'"):
        ensure_index(job, tmp_path / "index", 1)
    first = ["the first 100 records", path, "line 1 has no field 'text'"]
    with refused("record_malformed", *first):
        job.encode_first(0, job.encoder())
    with path.open("a") as file:
        file.write('{"text": "a"}\n')
    with refused("record_malformed", *first):
        job.encode_first(0, job.encoder())
    write_lines(path, [*[{"txt": "a"}] * 99, {"text": "a"}])
    assert job.encode_first(0, job.encoder())


@pytest.mark.usefixtures("_small_pieces")
@pytest.mark.parametrize("number", [0, 1, 2])
def test_one_file_of_broken_records_among_others_is_refused(tmp_path: Path, number: int) -> None:
    paths = [write_lines(tmp_path / f"{name}.jsonl", [{"text": "a" * 50}] * 200) for name in "abc"]
    # Several pieces: an attempt that goes on amid the file knows its earlier ones.
    write_lines(paths[number], [{"txt": "a" * 50}] * 200)
    job = job_of(tmp_path, paths=tuple(paths), broken_records="skip")

    def interrupted(share: float) -> None:
        if share > (number + 0.6) / 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_index(job, tmp_path / "index", 1, interrupted)
    for processes in (1, 2):
        with refused(
            "record_malformed", paths[number], "no readable record, 200 are broken; the first: line 1 "
        ):
            ensure_index(job, tmp_path / "index", processes)


@pytest.mark.usefixtures("_small_pieces")
def test_a_file_with_one_readable_record_is_not_refused(tmp_path: Path) -> None:
    records = [{"txt": "a" * 50}] * 200
    first = write_lines(tmp_path / "a.jsonl", [{"text": "first"}, *records])
    last = write_lines(tmp_path / "b.jsonl", [*records, {"text": "last"}])
    job = job_of(tmp_path, paths=(first, last), broken_records="skip")
    corpus = open_index(ensure_index(job, tmp_path / "index", 1))
    assert texts_of(corpus) == ["first", "last"]
    assert corpus.left_out["broken_records"] == 400


def test_names_that_are_no_utf_8_are_stored_escaped(tmp_path: Path) -> None:
    path = tmp_path / "caf\udce9.jsonl"
    path.write_text('{"\\ud800\\u001b[31m": 1}\n{"text": "ab"}\n')
    job = job_of(tmp_path, paths=(path,), broken_records="skip")
    corpus = open_index(ensure_index(job, tmp_path / "index", 1))
    assert texts_of(corpus) == ["ab"]
    (place,) = corpus.first_broken
    assert r"caf\udce9.jsonl', line 1 has no field 'text', its fields are \ud800\x1b[31m;" in place
    with refused("record_malformed", r"its fields are \ud800\x1b[31m;"):
        ensure_index(replace(job, broken_records="refuse"), tmp_path / "other", 1)


def test_data_that_are_refused_at_once_leave_no_folder(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.jsonl", [{"text": "a"}, {"text": 3}])
    with refused("record_malformed", path, "line 2"):
        ensure_index(job_of(tmp_path, paths=(path,)), tmp_path / "index", 1)
    assert not list((tmp_path / "index").iterdir())
