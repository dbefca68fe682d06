"""An index is built once, by any number of processes and attempts, and is the same bytes each time."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.index.small_index import (
    NUM_DOCUMENTS,
    counted_pieces,
    digest,
    job_of,
    texts_of,
    write_documents,
    write_lines,
)
from data.small_tokenizer import write_tokenizer
from helpers import refused, unopened
from hydraulis.data.index import job
from hydraulis.data.index.builder import ensure_index, index_folder
from hydraulis.data.index.files import DOCUMENT_FILES, complete_extent, open_index
from hydraulis.data.index.job import IndexJob
from hydraulis.data.tokenization.tokenizer import load_tokenizer
from hydraulis.data.tokens import MaskedTokens, plain_tokens
from hydraulis.files import with_digest


@pytest.mark.usefixtures("_small_pieces")
def test_an_index_has_every_document_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_an_open_index_maps_its_files_without_a_copy(tmp_path: Path) -> None:
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
def test_an_interrupted_build_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_documents(tmp_path)
    expected = digest(ensure_index(job_of(tmp_path), tmp_path / "at-once", 1))
    read = counted_pieces(monkeypatch)

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


def test_progress_is_reported_before_the_first_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_documents(tmp_path)
    events: list[Any] = []

    def read(*_: Any) -> Any:
        events.append("reads")
        raise KeyboardInterrupt

    monkeypatch.setattr(IndexJob, "blocks", read)
    with pytest.raises(KeyboardInterrupt):
        ensure_index(job_of(tmp_path), tmp_path / "index", 1, events.append)
    assert events == [0.0, "reads"]


# Start-up code that slows every tokenizing process down, so that its progress is visible.
SLOW = """\
import time
import hydraulis.data.index.job as job
import hydraulis.data.tokenization.encoder as encoder

job._REPORT_S = 0.0
encode = encoder.TextEncoder.encode

def slowly(self, values):
    time.sleep(0.005)
    return encode(self, values)

encoder.TextEncoder.encode = slowly
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_progress_is_reported_within_a_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    write_documents(tmp_path)
    (tmp_path / "sitecustomize.py").write_text(SLOW)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    monkeypatch.setattr(job, "_REPORT_S", 0.0)
    # One piece for each process.
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
job = IndexJob(paths=paths, broken_records="refuse", **kind)

def progress(share):
    if share > until:
        os.kill(os.getpid(), signal.SIGKILL)

builder.ensure_index(job, folder / "index", 2, progress)
"""


def test_a_build_continues_after_a_killed_one(tmp_path: Path) -> None:
    texts = write_documents(tmp_path)
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    folder = tmp_path / "index" / job_of(tmp_path).key()[:16]
    assert subprocess.run([*command, "0.5"], check=False).returncode == -signal.SIGKILL
    assert complete_extent(folder) is None
    assert json.loads((folder / "journal.json").read_text())["pieces"] > 2
    subprocess.run([*command, "2"], check=True)
    assert texts_of(open_index(folder)) == texts


@pytest.mark.usefixtures("_small_pieces")
@pytest.mark.parametrize("end", ["", "no JSON\n"])
def test_a_file_that_changes_while_it_is_indexed_leaves_no_index(tmp_path: Path, end: str) -> None:
    write_documents(tmp_path)
    path = tmp_path / "b.jsonl"
    shares: list[float] = []

    def replace_file(share: float) -> None:
        if share > 0.4 and not shares:
            shares.append(share)
            write_lines(tmp_path / "new", [{"text": "another document"}] * 200)
            with (tmp_path / "new").open("a") as file:
                file.write(end)
            (tmp_path / "new").rename(path)

    with refused("data_file_invalid", path, "changed while it was indexed", "start again"):
        ensure_index(job_of(tmp_path), tmp_path / "index", 1, replace_file)
    assert list((tmp_path / "index").iterdir()) == []


@pytest.mark.usefixtures("_small_pieces")
def test_an_interrupted_build_of_a_changed_file_is_not_continued(tmp_path: Path) -> None:
    write_documents(tmp_path)
    path = tmp_path / "b.jsonl"

    def change(share: float) -> None:
        if share > 0.8:
            path.write_text('{"text": "other"}\n')
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_index(job_of(tmp_path), tmp_path / "index", 1, change)
    assert list((tmp_path / "index").iterdir()) == []


def test_an_invalid_template_is_named_with_its_line(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "one")
    template = tmp_path / "chat.jinja"
    template.write_text("x\n{% for %}")
    with refused("chat_template_invalid", template, "line 2"):
        job_of(tmp_path, format="chat", fields=("text",), chat_template=str(template)).encoder()


def test_a_complete_index_is_used_without_a_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_documents(tmp_path)
    folder = ensure_index(job_of(tmp_path), tmp_path / "index", 1)
    monkeypatch.setattr(IndexJob, "pieces", lambda _: pytest.fail("read again"))
    assert ensure_index(job_of(tmp_path), tmp_path / "index", 1) == folder


def test_every_setting_that_changes_the_tokens_changes_the_name_of_the_index(tmp_path: Path) -> None:
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


def test_the_smallest_sufficient_token_type_is_used(tmp_path: Path) -> None:
    write_documents(tmp_path)
    write_tokenizer(tmp_path / "tokenizer")
    job = job_of(tmp_path, tokenizer=str(tmp_path / "tokenizer"))
    corpus = open_index(ensure_index(job, tmp_path / "index", 1))
    assert corpus.token_T.dtype == np.uint16
    tokenizer = load_tokenizer(str(tmp_path / "tokenizer"))
    expected = tokenizer.encode(write_documents(tmp_path)[7], special=True)
    assert plain_tokens(corpus.read(7)).tolist() == expected.tolist()


def test_a_mask_is_stored_and_documents_without_targets_are_omitted_and_counted(tmp_path: Path) -> None:
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
    with refused("corpus_empty", path, "2 documents"):
        open_index(ensure_index(job_of(tmp_path, paths=(path,)), tmp_path / "index", 1))
    path.write_text("")
    with refused("corpus_empty", path):
        open_index(ensure_index(job_of(tmp_path, paths=(path,)), tmp_path / "index", 1))


@pytest.mark.usefixtures("_small_pieces")
def test_processes_import_nothing_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = write_documents(tmp_path)
    (tmp_path / "tokenize.py").write_text("raise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    assert texts_of(open_index(ensure_index(job_of(tmp_path), tmp_path / "index", 2))) == texts


@pytest.mark.usefixtures("_small_pieces")
def test_output_at_the_start_of_a_process_does_not_mix_with_its_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    texts = write_documents(tmp_path)
    (tmp_path / "sitecustomize.py").write_text('print("hello", flush=True)\n')
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    assert texts_of(open_index(ensure_index(job_of(tmp_path), tmp_path / "index", 2))) == texts
    output = capfd.readouterr()
    assert (output.out, output.err) == ("", "hello\n" * 2)


@pytest.mark.usefixtures("_small_pieces")
def test_a_killed_process_may_have_lacked_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_documents(tmp_path)
    (tmp_path / "sitecustomize.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    with refused("index_process_failed", "code -9", "lack of memory", "data.index_processes"):
        ensure_index(job_of(tmp_path), tmp_path / "index", 2)


@pytest.mark.usefixtures("_small_pieces")
def test_a_process_that_dies_ends_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_documents(tmp_path)
    # A program that ends at once.
    monkeypatch.setattr("hydraulis.data.index.worker.sys.executable", "/bin/false")
    with refused("index_process_failed", "code 1: correct the error above") as caught:
        ensure_index(job_of(tmp_path), tmp_path / "index", 2)
    assert "memory" not in str(caught.value)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    write_documents(tmp_path)
    with refused("index_damaged", tmp_path / "elsewhere"):
        open_index(tmp_path / "elsewhere")
    folder = ensure_index(job_of(tmp_path), tmp_path / "index", 1)
    with (folder / "tokens.bin").open("ab") as file:
        file.write(b"x")
    with refused("index_damaged", folder / "tokens.bin", "bytes"):
        open_index(folder)
    (folder / "index.json").write_text("{}")
    with refused("index_damaged", folder / "index.json"):
        ensure_index(job_of(tmp_path), tmp_path / "index", 1)


@pytest.mark.parametrize("name", [*DOCUMENT_FILES, "tokens.bin", "index.json"])
def test_a_file_that_may_not_be_read_is_named_and_not_called_damaged(tmp_path: Path, name: str) -> None:
    write_documents(tmp_path)
    folder = ensure_index(job_of(tmp_path), tmp_path / "index", 1)
    with unopened(folder / name):
        with refused("file_unreadable", folder / name, "Permission denied", "permissions") as caught:
            open_index(ensure_index(job_of(tmp_path), tmp_path / "index", 1))
        assert "remove" not in str(caught.value)
    assert len(open_index(folder)) == NUM_DOCUMENTS


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", DOCUMENT_FILES)
def test_a_changed_number_of_a_document_is_refused(tmp_path: Path, name: str) -> None:
    write_documents(tmp_path)
    folder = ensure_index(job_of(tmp_path), tmp_path / "index", 1)
    flip(folder / name, -20)
    with refused("index_damaged", folder / name, "digest"):
        open_index(folder)


@pytest.mark.parametrize(("name", "place"), [("tokens.bin", 2), ("loss_mask.bin", 1)])
def test_a_changed_token_is_refused_when_its_document_is_read(tmp_path: Path, name: str, place: int) -> None:
    records = [{"prompt": "a", "completion": "bc"}, {"prompt": "b", "completion": "cd"}]
    job = job_of(
        tmp_path,
        paths=(write_lines(tmp_path / "a.jsonl", records),),
        format="completion",
        fields=("prompt", "completion"),
    )
    folder = ensure_index(job, tmp_path / "index", 1)
    corpus = open_index(folder)
    whole = corpus.read(0)
    flip(folder / name, place)
    corpus = open_index(folder)
    with refused("index_damaged", "document 0", folder / "tokens.bin", "digest"):
        corpus.read(0)
    assert len(corpus.read(1)) == len(whole)


def test_a_part_of_a_long_document_is_verified_with_the_whole_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = write_documents(tmp_path)
    monkeypatch.setattr("hydraulis.data.corpus._LONG", 100)
    number, text = next((number, text) for number, text in enumerate(texts) if len(text) > 100)
    folder = ensure_index(job_of(tmp_path), tmp_path / "index", 1)
    corpus = open_index(folder)
    start = int(corpus.offset[number])
    assert plain_tokens(corpus.slice(start + 90, start + 99)).tobytes().decode() == text[90:99]
    flip(folder / "tokens.bin", start + 1)
    corpus.slice(start + 90, start + 99)
    with refused("index_damaged", f"document {number} "):
        open_index(folder).slice(start + 90, start + 99)


@pytest.mark.parametrize("name", ["tokens.bin", "lengths.bin"])
def test_a_file_that_is_shortened_under_way_ends_with_a_message(tmp_path: Path, name: str) -> None:
    write_documents(tmp_path)
    folder = ensure_index(job_of(tmp_path), tmp_path / "index", 1)
    corpus = open_index(folder)
    size = (folder / name).stat().st_size
    os.truncate(folder / name, 10)
    with refused("data_file_invalid", folder / name, f"{size:,} bytes", 10):
        corpus.read(150)


DAMAGED = {
    "empty": b"",
    "binary": b"\xff\0",
    "a list": b"[]",
    "a number": b"5",
    "nested": b"[" * 100_000,
    "no digest": b'{"dtype": "|u1", "masked": false}',
    "another digest": b'{"dtype": "|u1", "masked": false, "digest": "00"}',
}


@pytest.mark.parametrize("name", ["index.json", "journal.json"])
@pytest.mark.parametrize("damage", [*DAMAGED, "a digit", "types"])
def test_a_damaged_extent_is_refused(tmp_path: Path, name: str, damage: str) -> None:
    write_documents(tmp_path)
    folder = ensure_index(job_of(tmp_path), tmp_path / "index", 1)
    content = (folder / "index.json").read_bytes()
    if damage == "a digit":
        assert content.count(b'"documents": 200') == 1
        content = content.replace(b'"documents": 200', b'"documents": 201')
    elif damage == "types":
        document = json.loads(content)
        del document["digest"]
        content = with_digest(document | {"first_broken": 5}).encode()
    else:
        content = DAMAGED[damage]
    (folder / "index.json").unlink()
    (folder / name).write_bytes(content)
    with refused("index_damaged", folder / name):
        ensure_index(job_of(tmp_path), tmp_path / "index", 1)


def test_a_journal_of_more_data_than_the_files_have_is_refused(tmp_path: Path) -> None:
    write_documents(tmp_path)
    folder = ensure_index(job_of(tmp_path), tmp_path / "index", 1)
    # As if the disk had lost the end of a file that it had confirmed.
    (folder / "index.json").rename(folder / "journal.json")
    size = (folder / "tokens.bin").stat().st_size
    os.truncate(folder / "tokens.bin", size - 7)
    with refused("index_damaged", folder / "tokens.bin", size - 7, size):
        ensure_index(job_of(tmp_path), tmp_path / "index", 1)


def test_an_unwritable_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_documents(tmp_path)
    (tmp_path / "file").write_text("")
    with refused("index_damaged", "set data.index_directory to another folder"):
        ensure_index(job_of(tmp_path), tmp_path / "file" / "index", 1)
    monkeypatch.chdir(tmp_path)
    with refused("index_damaged", "or run the command in a folder that can be written"):
        ensure_index(job_of(tmp_path), Path("file/index"), 1)


@pytest.mark.parametrize("name", ["lock", "tokens.bin"])
def test_no_link_leads_a_write_out_of_the_folder(tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.write_text("precious")
    write_documents(tmp_path)
    folder = index_folder(job_of(tmp_path), tmp_path / "index")
    folder.mkdir(parents=True)
    (folder / name).symlink_to(outside)
    with refused("index_damaged", folder, "symbolic link"):
        ensure_index(job_of(tmp_path), tmp_path / "index", 1)
    assert outside.read_text() == "precious"
