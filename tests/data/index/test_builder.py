"""An index is built once, by any number of processes and attempts, and is the same bytes each time."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from data.small_tokenizer import write_tokenizer
from hydraulis.data.corpus import Corpus
from hydraulis.data.index import broken_records, builder, job
from hydraulis.data.index.builder import ensure_index
from hydraulis.data.index.files import begun_extent, complete_extent, open_index
from hydraulis.data.index.job import IndexJob
from hydraulis.data.records import json_lines
from hydraulis.data.text.tokenizer import load_tokenizer
from hydraulis.data.tokens import MaskedTokens, plain_tokens
from hydraulis.errors import HydraulisError, InvalidInputError

NUM_DOCUMENTS = 200
OR_SKIP = '; data.broken = "skip" (--broken skip) leaves such records out'


def write_documents(folder: Path) -> list[str]:
    rng = np.random.default_rng(0)
    texts = ["the fox " * int(n) + f"#{i}" for i, n in enumerate(rng.integers(0, 30, NUM_DOCUMENTS))]
    half = NUM_DOCUMENTS // 2
    for name, part in (("a", texts[:half]), ("b", texts[half:])):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in part)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    return texts


def job_of(folder: Path, **changes: Any) -> IndexJob:
    job = IndexJob(
        paths=(folder / "a.jsonl", folder / "b.jsonl"),
        format="text",
        fields=("text",),
        tokenizer="bytes",
        chat_template="",
        eos_token="",
        broken="refuse",
    )
    return replace(job, **changes)


def texts_of(corpus: Corpus) -> list[str]:
    return [plain_tokens(corpus.read(index)).tobytes().decode() for index in range(len(corpus))]


def digest(folder: Path) -> str:
    files = sorted(path for path in folder.iterdir() if path.name != "lock")
    return hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in files)).hexdigest()


@pytest.fixture
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "PIECE_BYTES", 2000)
    monkeypatch.setattr(builder, "_SAVE_S", 0.0)


@pytest.mark.usefixtures("_small_pieces")
def test_an_index_holds_every_document_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydraulis.data.index.job._BLOCK_TOKENS", 700)
    texts = write_documents(tmp_path)
    shares: list[float] = []
    folder = ensure_index(job_of(tmp_path), tmp_path / "index", 1, shares.append)
    corpus = open_index(folder)
    assert texts_of(corpus) == texts
    assert corpus.lengths.tolist() == [len(text) for text in texts]
    assert corpus.target_counts.tolist() == [len(text) - 1 for text in texts]
    assert corpus.token_T.dtype == np.uint8
    assert not corpus.token_T.flags.owndata
    assert not (folder / "journal.json").exists()
    assert shares == sorted(shares)
    assert len(shares) > 10
    assert shares[-1] == 1.0


def test_an_open_index_is_its_files_and_no_copy_of_them(tmp_path: Path) -> None:
    write_documents(tmp_path)
    folder = ensure_index(job_of(tmp_path), tmp_path / "index", 1)
    corpus = open_index(folder)
    arrays = {
        "tokens": corpus.token_T,
        "offsets": corpus.offset,
        "lengths": corpus.known_lengths,
        "targets": corpus.known_target_counts,
    }
    for name, array in arrays.items():
        assert array is not None
        before = array[1]
        with (folder / f"{name}.bin").open("r+b") as file:
            file.seek(array.itemsize)
            file.write((int(before) + 1).to_bytes(array.itemsize, "little"))
        assert array[1] == before + 1, name


@pytest.mark.usefixtures("_small_pieces")
def test_several_processes_give_the_same_bytes(tmp_path: Path) -> None:
    write_documents(tmp_path)
    # Pieces are cut here alone: the processes take them as they come.
    alone, together = (ensure_index(job_of(tmp_path), tmp_path / str(number), number) for number in (1, 2))
    assert digest(alone) == digest(together)


@pytest.mark.usefixtures("_small_pieces")
def test_an_attempt_that_was_ended_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_documents(tmp_path)
    expected = digest(ensure_index(job_of(tmp_path), tmp_path / "at-once", 1))
    read: list[Any] = []
    blocks = IndexJob.blocks

    def counted(job: IndexJob, piece: Any, *others: Any) -> Any:
        read.append(piece)
        return blocks(job, piece, *others)

    monkeypatch.setattr(IndexJob, "blocks", counted)

    def interrupted(share: float) -> None:
        # In the middle of a piece, so that more is written than the journal knows.
        if share > 0.4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_index(job_of(tmp_path), tmp_path / "index", 1, interrupted)
    first = list(read)
    folder = ensure_index(job_of(tmp_path), tmp_path / "index", 1)
    assert digest(folder) == expected
    pieces = job_of(tmp_path).pieces()
    # The one that was not complete comes again, and no other.
    assert first + read[len(first) :] == [*pieces[: len(first)], *pieces[len(first) - 1 :]]
    assert 2 < len(first) < len(pieces) - 2


def test_how_far_it_is_is_told_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_documents(tmp_path)
    told: list[Any] = []

    def read(*_: Any) -> Any:
        told.append("reads")
        raise KeyboardInterrupt

    monkeypatch.setattr(IndexJob, "blocks", read)
    with pytest.raises(KeyboardInterrupt):
        ensure_index(job_of(tmp_path), tmp_path / "index", 1, told.append)
    assert told == [0.0, "reads"]


# In each process that tokenises, before it begins: slow enough to be seen at work.
SLOW = """\
import time
import hydraulis.data.index.job as job
import hydraulis.data.text.encoder as encoder

job._TELL_S = 0.0
encode = encoder.TextEncoder.encode

def slowly(self, values):
    time.sleep(0.005)
    return encode(self, values)

encoder.TextEncoder.encode = slowly
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_how_far_it_is_is_told_within_a_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    write_documents(tmp_path)
    (tmp_path / "sitecustomize.py").write_text(SLOW)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    monkeypatch.setattr(job, "_TELL_S", 0.0)
    # One for each process, each long enough to be told of.
    assert len(job_of(tmp_path).pieces()) == 2
    shares: list[float] = []
    ensure_index(job_of(tmp_path), tmp_path / "index", processes, shares.append)
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    between = {share for share in shares if 0 < share < 1}
    assert len(between) > NUM_DOCUMENTS / 10


KILLED = """\
import os, pathlib, signal, sys
import hydraulis.data.index.builder as builder
import hydraulis.data.records.json_lines as json_lines
from hydraulis.data.index.job import IndexJob

builder._SAVE_S, json_lines.PIECE_BYTES = 0.0, 2000
folder, until = pathlib.Path(sys.argv[1]), float(sys.argv[2])
paths = (folder / "a.jsonl", folder / "b.jsonl")
kind = {"format": "text", "fields": ("text",), "tokenizer": "bytes", "chat_template": "", "eos_token": ""}
job = IndexJob(paths=paths, broken="refuse", **kind)

def progress(share):
    if share > until:
        os.kill(os.getpid(), signal.SIGKILL)

builder.ensure_index(job, folder / "index", 2, progress)
"""


def test_a_build_that_is_killed_leaves_what_the_next_one_goes_on_with(tmp_path: Path) -> None:
    texts = write_documents(tmp_path)
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    folder = tmp_path / "index" / job_of(tmp_path).key()[:16]
    assert subprocess.run([*command, "0.5"], check=False).returncode == -signal.SIGKILL
    assert complete_extent(folder) is None
    assert json.loads((folder / "journal.json").read_text())["pieces"] > 2
    subprocess.run([*command, "2"], check=True)
    assert texts_of(open_index(folder)) == texts


def test_a_template_that_is_none_is_named_with_its_line(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "one")
    template = tmp_path / "chat.jinja"
    template.write_text("x\n{% for %}")
    with pytest.raises(InvalidInputError, match=rf"^chat template '{template}', line 2: ") as refusal:
        job_of(tmp_path, format="chat", fields=("text",), chat_template=str(template)).encoder()
    assert refusal.value.code == "chat_template"


def test_a_complete_index_is_not_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_documents(tmp_path)
    folder = ensure_index(job_of(tmp_path), tmp_path / "index", 1)
    monkeypatch.setattr(IndexJob, "pieces", lambda _: pytest.fail("read again"))
    assert ensure_index(job_of(tmp_path), tmp_path / "index", 1) == folder


def test_whatever_decides_the_tokens_names_the_index(tmp_path: Path) -> None:
    write_documents(tmp_path)
    write_tokenizer(tmp_path / "one")
    write_tokenizer(tmp_path / "two", eos_token="</s>")
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages }}")
    chat = {"format": "chat", "fields": ("text",)}
    jobs = [
        job_of(tmp_path),
        job_of(tmp_path, paths=(tmp_path / "b.jsonl", tmp_path / "a.jsonl")),
        job_of(tmp_path, fields=("txt",)),
        job_of(tmp_path, eos_token="\n"),
        job_of(tmp_path, tokenizer=str(tmp_path / "one")),
        job_of(tmp_path, tokenizer=str(tmp_path / "two")),
        job_of(tmp_path, format="tokens"),
        job_of(tmp_path, **chat, chat_template="chatml"),
        job_of(tmp_path, **chat, chat_template=str(template)),
    ]
    keys = [job.key() for job in jobs]
    template.write_text("{{ messages }} ")
    keys.append(job_of(tmp_path, **chat, chat_template=str(template)).key())
    with (tmp_path / "b.jsonl").open("a") as file:
        file.write('{"text": "more"}\n')
    keys.append(job_of(tmp_path).key())
    assert len(set(keys)) == len(keys) == 11
    assert keys[0] != job_of(tmp_path).key() == keys[-1]


def test_the_smallest_type_that_holds_the_tokens_is_taken(tmp_path: Path) -> None:
    write_documents(tmp_path)
    write_tokenizer(tmp_path / "tokenizer")
    job = job_of(tmp_path, tokenizer=str(tmp_path / "tokenizer"))
    corpus = open_index(ensure_index(job, tmp_path / "index", 1))
    assert corpus.token_T.dtype == np.uint16
    tokenizer = load_tokenizer(str(tmp_path / "tokenizer"))
    expected = tokenizer.encode(write_documents(tmp_path)[7], special=True)
    assert plain_tokens(corpus.read(7)).tolist() == expected.tolist()


def write_lines(path: Path, records: Sequence[object]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def test_a_mask_is_kept_and_what_trains_nothing_is_left_out_and_counted(tmp_path: Path) -> None:
    records = [
        {"prompt": "a", "completion": "bc"},
        {"prompt": "a", "completion": ""},
        {"prompt": "", "completion": "x"},
    ]
    path = write_lines(tmp_path / "x.jsonl", [*records, {"prompt": "no ", "completion": "yes"}])
    job = job_of(tmp_path, paths=(path,), format="completion", fields=("prompt", "completion"))
    corpus = open_index(ensure_index(job, tmp_path / "index", 1))
    documents = [corpus.read(index) for index in range(len(corpus))]
    assert [plain_tokens(document).tobytes() for document in documents] == [b"abc", b"no yes"]
    assert all(isinstance(document, MaskedTokens) for document in documents)
    assert corpus.target_counts.tolist() == [2, 3]
    assert corpus.left_out == {"documents_without_target": 2, "broken_records": 0}


def test_files_without_any_target_are_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.jsonl", [{"text": ""}, {"text": "a"}])
    says = r"no document of file '.*x\.jsonl' has a target, 2 documents left out"
    with pytest.raises(InvalidInputError, match=says) as refusal:
        open_index(ensure_index(job_of(tmp_path, paths=(path,)), tmp_path / "index", 1))
    assert refusal.value.code == "corpus_empty"
    path.write_text("")
    with pytest.raises(InvalidInputError, match=r"no record is in file '.*x\.jsonl': name files"):
        open_index(ensure_index(job_of(tmp_path, paths=(path,)), tmp_path / "index", 1))


@pytest.mark.usefixtures("_small_pieces")
@pytest.mark.parametrize("processes", [1, 2])
def test_a_record_that_is_refused_is_named_by_file_and_line(tmp_path: Path, processes: int) -> None:
    write_documents(tmp_path)
    with (tmp_path / "b.jsonl").open("a") as file:
        file.write('{"text": 3}\n')
    says = r"b\.jsonl', line 101: field 'text' holds 3 where a string"
    with pytest.raises(InvalidInputError, match=says) as refusal:
        ensure_index(job_of(tmp_path), tmp_path / "index", processes)
    assert refusal.value.code == "record_value"
    # What was done of it is kept.
    (folder,) = (tmp_path / "index").iterdir()
    begun = begun_extent(folder)
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
    assert refusal.value.code == "record_value"
    lines = ((103 + 3 * n, 104 + 2 * n) for n in range(10))
    listed = [f"line {line}: field 'text' holds {value} where a string must be" for line, value in lines]
    assert str(refusal.value) == (
        f"file '{tmp_path}/a.jsonl' has 22 records that are refused: {'; '.join(listed)}; and 12 more; "
        f"mend the record, or leave it out{OR_SKIP}"
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
    monkeypatch.setattr(broken_records, "LOOK_S", 0.0)
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
        "line 5 is no JSON (Unterminated string starting, column 2); mend the record, or leave it out; "
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
    begun = begun_extent(folder)
    assert begun is not None
    assert begun.pieces > 0
    read: list[Any] = []
    blocks = IndexJob.blocks

    def counted(job: IndexJob, piece: Any, *others: Any) -> Any:
        read.append(piece)
        return blocks(job, piece, *others)

    monkeypatch.setattr(IndexJob, "blocks", counted)
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
        assert refusal.value.code == "records_left_out"

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
    assert refusal.value.code == "record_field"
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


@pytest.mark.usefixtures("_small_pieces")
def test_a_process_that_dies_ends_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_documents(tmp_path)
    # Every program that the tests start does the same, and this one ends at once.
    monkeypatch.setattr("hydraulis.data.index.worker.sys.executable", "/bin/false")
    with pytest.raises(HydraulisError, match="ended with code 1") as refusal:
        ensure_index(job_of(tmp_path), tmp_path / "index", 2)
    assert refusal.value.code == "index_process"


def test_two_programs_do_not_build_the_same_index(tmp_path: Path) -> None:
    write_documents(tmp_path)

    def again(_: float) -> None:
        ensure_index(job_of(tmp_path), tmp_path / "index", 1)

    with pytest.raises(HydraulisError, match="another program is building") as refusal:
        ensure_index(job_of(tmp_path), tmp_path / "index", 1, again)
    assert refusal.value.code == "index_busy"


def test_files_that_are_not_those_of_the_index_are_refused(tmp_path: Path) -> None:
    write_documents(tmp_path)
    with pytest.raises(HydraulisError, match="is not complete on this machine") as refusal:
        open_index(tmp_path / "elsewhere")
    assert refusal.value.code == "index_files"
    folder = ensure_index(job_of(tmp_path), tmp_path / "index", 1)
    with (folder / "tokens.bin").open("ab") as file:
        file.write(b"x")
    with pytest.raises(HydraulisError, match=r"tokens\.bin' has \d+ bytes and must have"):
        open_index(folder)
    (folder / "index.json").write_text("{}")
    with pytest.raises(HydraulisError, match="cannot be read"):
        ensure_index(job_of(tmp_path), tmp_path / "index", 1)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    write_documents(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(HydraulisError, match=r"set data\.index_directory") as refusal:
        ensure_index(job_of(tmp_path), tmp_path / "file" / "index", 1)
    assert refusal.value.code == "index_files"
