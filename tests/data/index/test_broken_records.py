"""Broken records are told together, or left out and counted."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from data.index.small_index import counted_pieces, job_of, texts_of, write_documents, write_lines
from hydraulis.data.index import broken_records
from hydraulis.data.index.builder import ensure_index
from hydraulis.data.index.files import open_index, partial_extent
from hydraulis.errors import InvalidInputError

OR_SKIP = '; data.broken = "skip" (--broken skip) leaves such records out'


@pytest.mark.usefixtures("_small_pieces")
@pytest.mark.parametrize("processes", [1, 2])
def test_a_record_that_is_refused_is_named_by_file_and_line(tmp_path: Path, processes: int) -> None:
    write_documents(tmp_path)
    with (tmp_path / "b.jsonl").open("a") as file:
        file.write('{"text": 3}\n')
    says = r"b\.jsonl', line 101: field 'text' holds 3 where a string"
    with pytest.raises(InvalidInputError, match=says) as refusal:
        ensure_index(job_of(tmp_path), tmp_path / "index", processes)
    assert refusal.value.code == "record_malformed"
    # What was done of it is kept.
    (folder,) = (tmp_path / "index").iterdir()
    begun = partial_extent(folder)
    assert begun is not None
    assert begun.pieces > 0


@pytest.mark.usefixtures("_small_pieces")
@pytest.mark.parametrize("processes", [1, 2])
def test_records_that_are_refused_are_told_together(tmp_path: Path, processes: int) -> None:
    write_documents(tmp_path)
    with (tmp_path / "a.jsonl").open("a") as file:
        for number in range(103, 143):
            file.write('{"text": "good"}\n\n' if number % 2 else f'{{"text": {number}}}\n')
        file.write('{"text": "the last" * 100}\n{"txt": "very"}\n')
    # Of another file nothing is said.
    (tmp_path / "b.jsonl").write_text("no JSON\n")
    with pytest.raises(InvalidInputError) as refusal:
        ensure_index(job_of(tmp_path), tmp_path / "index", processes)
    assert refusal.value.code == "record_malformed"
    lines = ((103 + 3 * n, 104 + 2 * n) for n in range(10))
    listed = [f"line {line}: field 'text' holds {value} where a string must be" for line, value in lines]
    assert str(refusal.value) == (
        f"file '{tmp_path}/a.jsonl' has 22 records that are refused: {'; '.join(listed)}; and 12 more; "
        f"correct the record, or leave it out{OR_SKIP}"
    )


def write_columns(path: Path, texts: Sequence[str | None]) -> Path:
    table = pyarrow.table({"text": texts})
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path, row_group_size=4)
    else:
        with pyarrow.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=4)
    return path


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
def test_rows_that_are_refused_are_told_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("hydraulis.data.records.arrow._PIECE_ROWS", 4)
    path = write_columns(tmp_path / name, ["ab", "cd", None, "ef", "gh", None, "ij"])
    assert job_of(tmp_path, paths=(path,)).pieces() == [(0, 0, 4), (0, 4, 7)]
    says = (
        rf"{name}' has 2 records that are refused: row 2; row 5: field 'text' holds null where a string must"
    )
    with pytest.raises(InvalidInputError, match=says):
        ensure_index(job_of(tmp_path, paths=(path,)), tmp_path / "index", 1)


@pytest.mark.usefixtures("_small_pieces")
def test_how_far_others_were_looked_for_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_documents(tmp_path)
    lines = (tmp_path / "a.jsonl").read_text().splitlines(keepends=True)
    lines[20] = lines[22] = lines[99] = "[]\n"
    (tmp_path / "a.jsonl").write_text("".join(lines))
    job = job_of(tmp_path)

    def refused() -> str:
        with pytest.raises(InvalidInputError) as refusal:
            ensure_index(job, tmp_path / "index", 1)
        return str(refusal.value)

    said = "; ".join(f"line {line} is no JSON object" for line in (21, 23, 100))
    assert refused() == (
        f"file '{tmp_path}/a.jsonl' has 3 records that are refused: {said}: write one per line{OR_SKIP}"
    )
    monkeypatch.setattr(broken_records, "SCAN_S", 0.0)
    up_to = "up to line 22, where 0 s of looking ended"
    said = f"line 21 is no JSON object: write one per line (no other one is refused {up_to})"
    assert refused() == f"file '{tmp_path}/a.jsonl', {said}{OR_SKIP}"


def test_each_remedy_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "a"}\n{"text": 3}\n[]\n{"text": 4}\n{"txt\n')
    with pytest.raises(InvalidInputError) as refusal:
        ensure_index(job_of(tmp_path, paths=(path,)), tmp_path / "index", 1)
    assert str(refusal.value) == (
        f"file '{path}' has 4 records that are refused: line 2: field 'text' holds 3 where a string must be; "
        "line 3 is no JSON object; line 4: field 'text' holds 4 where a string must be; "
        "line 5 is no JSON (Unterminated string starting, column 2); correct the record, or leave it out; "
        f"write one per line; write one object per line{OR_SKIP}"
    )


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
def test_broken_records_are_left_out_and_counted_if_so_wanted(tmp_path: Path, processes: int) -> None:
    texts = write_broken(tmp_path)
    corpus = open_index(ensure_index(job_of(tmp_path, broken="skip"), tmp_path / "index", processes))
    assert texts_of(corpus) == texts
    assert corpus.left_out == {"documents_without_target": 0, "broken_records": 15}
    assert len(corpus.first_broken) == 10
    first, second = corpus.first_broken[:2]
    assert first.startswith(f"file '{tmp_path}/a.jsonl', line 41 is no JSON (")
    assert second.startswith(f"file '{tmp_path}/a.jsonl', line 46: field 'text' holds 3 where")


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
def test_broken_rows_are_left_out_and_counted_if_so_wanted(tmp_path: Path, name: str) -> None:
    path = write_columns(tmp_path / name, ["ab", "cd", None, "ef", "gh", None, "ij"])
    job = job_of(tmp_path, paths=(path,), broken="skip")
    corpus = open_index(ensure_index(job, tmp_path / "index", 1))
    assert texts_of(corpus) == ["ab", "cd", "ef", "gh", "ij"]
    assert [place.split(":")[0] for place in corpus.first_broken] == [
        f"file '{path}', row 2",
        f"file '{path}', row 5",
    ]


@pytest.mark.usefixtures("_small_pieces")
def test_what_was_done_until_a_record_was_refused_is_gone_on_with_when_it_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = write_broken(tmp_path)
    with pytest.raises(InvalidInputError, match=r"a\.jsonl' has 12 records"):
        ensure_index(job_of(tmp_path), tmp_path / "index", 1)
    (folder,) = (tmp_path / "index").iterdir()
    begun = partial_extent(folder)
    assert begun is not None
    assert begun.pieces > 0
    read = counted_pieces(monkeypatch)
    job = job_of(tmp_path, broken="skip")
    assert ensure_index(job, tmp_path / "index", 1) == folder
    assert read == job.pieces()[begun.pieces :]
    assert texts_of(open_index(folder)) == texts


@pytest.mark.usefixtures("_small_pieces")
def test_an_index_that_leaves_records_out_is_refused_where_they_are(tmp_path: Path) -> None:
    write_broken(tmp_path)
    job = job_of(tmp_path)

    def refused() -> None:
        says = r"^15 broken records left out: file '.*a\.jsonl', line 41 is .*; and 5 more; .*set it again"
        with pytest.raises(InvalidInputError, match=says) as refusal:
            ensure_index(job, tmp_path / "index", 1)
        assert refusal.value.code == "record_malformed"

    def interrupted(share: float) -> None:
        if share > 0.99:
            raise KeyboardInterrupt

    # Of an attempt that was ended, as of one that was not.
    with pytest.raises(KeyboardInterrupt):
        ensure_index(replace(job, broken="skip"), tmp_path / "index", 1, interrupted)
    refused()
    ensure_index(replace(job, broken="skip"), tmp_path / "index", 1)
    refused()


def test_files_of_broken_records_alone_are_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.jsonl", [{"txt": "a"}] * 120)
    job = job_of(tmp_path, paths=(path,), broken="skip")
    says = (
        r"^no document is in file '.*', 120 broken records left out, the first: .* line 1 has no field 'text'"
    )
    with pytest.raises(InvalidInputError, match=says) as refusal:
        ensure_index(job, tmp_path / "index", 1)
    assert refusal.value.code == "corpus_empty"
    says = r"^none of the first 100 records can be read: file '.*', line 1 has no field 'text'"
    with pytest.raises(InvalidInputError, match=says) as refusal:
        job.encode_first(0, job.encoder())
    assert refusal.value.code == "record_malformed"
    with path.open("a") as file:
        file.write('{"text": "a"}\n')
    with pytest.raises(InvalidInputError, match="none of the first 100"):
        job.encode_first(0, job.encoder())
    write_lines(path, [*[{"txt": "a"}] * 99, {"text": "a"}])
    assert job.encode_first(0, job.encoder())


def test_data_that_are_refused_at_once_leave_no_folder(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.jsonl", [{"text": "a"}, {"text": 3}])
    with pytest.raises(InvalidInputError, match="line 2"):
        ensure_index(job_of(tmp_path, paths=(path,)), tmp_path / "index", 1)
    assert not list((tmp_path / "index").iterdir())
