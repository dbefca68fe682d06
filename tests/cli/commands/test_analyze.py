import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.invocation import assert_refused, printed_document
from cli.reports import collect_reports, interrupt_at
from helpers import ROOT
from hydraulis.cli.exit import EXIT_INTERRUPTED
from hydraulis.cli.main import main

TEXT = str(ROOT / "examples/text.jsonl")
CHAT = str(ROOT / "examples/chat.jsonl")
RUN = str(ROOT / "examples/own.toml")
OF_RECORDS = ("--field", "--tokenizer", "--chat-template", "--max-tokens")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The index is kept in the folder of the command.
    monkeypatch.chdir(tmp_path)


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    return printed_document(capsys, ["analyze", *arguments, "--json"])


def lengths_of(path: str) -> list[int]:
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return [len(json.loads(line)["text"].encode()) for line in lines]


def test_the_lengths_are_those_of_the_documents(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, TEXT)["lengths"]
    lengths = lengths_of(TEXT)
    assert (found["sequences"], found["tokens"]) == (len(lengths), sum(lengths))
    assert found["longest"] == max(lengths)
    assert sum(one["sequences"] for one in found["bins"]) == len(lengths)
    split = document(capsys, TEXT, "--max-tokens", "100")["lengths"]
    assert split["longest"] == 100
    assert split["tokens"] == sum(lengths)


def test_chats_have_fewer_targets(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, CHAT, "--format", "chat", "--chat-template", "chatml")["lengths"]
    assert found["sequences"] == 4
    assert 0 < found["targets"] < found["tokens"]


def test_documents_left_out_or_changed_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    asked = {"role": "user", "content": "a"}
    chats = [[asked, {"role": "assistant", "content": "b" * 99}], [asked]]
    lines = [json.dumps({"messages": chat}) + "\n" for chat in chats]
    Path("chats.jsonl").write_text("".join(lines), encoding="utf-8")
    options = ("chats.jsonl", "--format", "chat", "--chat-template", "chatml", "--max-tokens", "90")
    documents = document(capsys, *options)["documents"]
    assert documents["documents"] == 1
    counts = {name: number for name, number in documents.items() if number and name != "documents"}
    assert counts.keys() >= {"too_long", "documents_without_target"}
    assert (counts["too_long"], counts["documents_without_target"]) == (1, 1)
    assert main(["analyze", *options]) == 0
    output = capsys.readouterr().out.splitlines()[0]
    assert output.startswith("1 document to train on; 1 document too long, ")
    assert output.endswith("1 document without a target")
    # A file of lengths has no such counts.
    Path("lengths.txt").write_text("3\n5\n", encoding="utf-8")
    assert document(capsys, "--lengths", "lengths.txt")["documents"] == {}


def test_broken_records_are_skipped_and_named_with_that_option(capsys: pytest.CaptureFixture[str]) -> None:
    Path("some.jsonl").write_text('{"text": "abc"}\n{"txt": "abc"}\n{"text": 3}\n', encoding="utf-8")
    command = ["analyze", "some.jsonl"]
    assert main(command) == 2
    assert "has 2 broken records: line 2 has no field 'text'" in capsys.readouterr().err
    assert main([*command, "--broken-records", "skip"]) == 0
    output = capsys.readouterr()
    assert "2 broken records left out: file 'some.jsonl', line 2 has no field 'text'" in output.err
    assert "file 'some.jsonl', line 3: field 'text' has 3 " in output.err
    assert output.out.startswith("1 document to train on; 2 records broken\n")
    assert document(capsys, "some.jsonl", "--broken-records", "skip")["documents"]["broken_records"] == 2


def test_batches_are_sampled_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert document(capsys, TEXT)["batches"] is None
    found = document(capsys, TEXT, "--tokens-per-batch", "600", "--count", "9", "--replicas", "2")["batches"]
    assert (found["batches"], found["replicas"]) == (9, 2)
    assert found["tokens"] >= 600
    assert 1 < np.mean(found["token_imbalance"]) <= 2


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("ids.jsonl", "--format", "tokens", "--tokens-per-batch", "16384"), "--tokens-per-batch = 16,384"),
        (("--lengths", "lengths.txt", "--tokens-per-batch", "16384"), "--tokens-per-batch = 16,384"),
        (("run.toml",), "data.tokens_per_batch = 16,384"),
        (("run.toml", "--tokens-per-batch", "32768"), "--tokens-per-batch = 32,768"),
        (
            ("run.toml", "--set", "data.sequences_per_batch=4096"),
            "data.sequences_per_batch = 4,096",
        ),
    ],
)
def test_batches_that_repeat_the_same_data_are_reported(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], named: str
) -> None:
    Path("ids.jsonl").write_text('{"input_ids": [17, 4, 99, 23]}\n')
    Path("lengths.txt").write_text("4\n")
    sources = 'sources = [{files = ["ids.jsonl"], format = "tokens"}]'
    Path("run.toml").write_text(f"[data]\ntokens_per_batch = 16384\n{sources}\nindex_processes = 1\n")
    assert main(["analyze", *arguments, "--count", "3", "--json"]) == 0
    output = capsys.readouterr()
    assert output.err.startswith(f"{named}: ")
    assert "1 sequence of 4 tokens" in output.err
    assert json.loads(output.out)["batches"]["batches"] == 3


def test_batches_of_a_few_epochs_are_not_reported(capsys: pytest.CaptureFixture[str]) -> None:
    document(capsys, TEXT, "--tokens-per-batch", str(10 * sum(lengths_of(TEXT))), "--count", "3")
    main(["analyze", TEXT, "--tokens-per-batch", "600"])
    assert capsys.readouterr().err == ""


def test_no_more_replicas_than_batches_have_sequences(capsys: pytest.CaptureFixture[str]) -> None:
    lengths = ("--lengths", str(ROOT / "examples/lengths.txt"))
    drawn = (*lengths, "--tokens-per-batch", "200000", "--count", "3")
    assert document(capsys, *drawn)["batches"]["replicas"] == 8
    profiled = (*drawn, "--profile", "llama-32b-a800", "--gpus", "64")
    assert document(capsys, *profiled)["batches"]["replicas"] == 64
    assert document(capsys, *profiled, "--replicas", "4")["batches"]["replicas"] == 4
    small = (TEXT, "--tokens-per-batch", "600")
    found = document(capsys, *small)["batches"]
    assert found["replicas"] == found["median_sequences"] == 4
    assert main(["analyze", *small]) == 0
    assert "Assigned in turn to 4 equal replicas (half of the batches" in capsys.readouterr().out
    assert main(["analyze", *small, "--replicas", "2"]) == 0
    assert "Assigned in turn to 2 equal replicas (set by --replicas)" in capsys.readouterr().out
    # As many as half of the batches have sequences, but the option sets them.
    assert main(["analyze", *small, "--replicas", "4"]) == 0
    assert "Assigned in turn to 4 equal replicas (set by --replicas)" in capsys.readouterr().out
    assert main(["analyze", *drawn]) == 0
    assert "Assigned in turn to 8 equal replicas (the default of --replicas)" in capsys.readouterr().out
    assert main(["analyze", *profiled]) == 0
    assert "Assigned in turn to 64 equal replicas (one for each of --gpus)" in capsys.readouterr().out
    assert main(["analyze", *small, "--replicas", "5"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("hydraulis: error [option_invalid]: --replicas 5 ")
    assert "at most 4 sequences" in error


def test_batches_of_a_runs_sequences_are_assigned_to_no_more_replicas(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = (ROOT / "examples/demo.toml").read_text(encoding="utf-8")
    Path("run.toml").write_text(f'{text}\n[[data.sources]]\nfiles = ["{TEXT}"]\n')
    assert document(capsys, "run.toml", "--set", "data.sequences_per_batch=3")["batches"]["replicas"] == 3


def test_a_static_strategy_is_compared_on_a_profile(capsys: pytest.CaptureFixture[str]) -> None:
    lengths = str(ROOT / "examples/lengths.txt")
    options = ("--lengths", lengths, "--tokens-per-batch", "100000", "--count", "3")
    found = document(capsys, *options, "--profile", "llama-32b-a800", "--gpus", "64")["comparison"]
    assert found["ratio"] == pytest.approx(found["static_ms"] / found["search_ms"])
    assert found["ratio"] > 1.05
    assert found["static"].count("x<") == 1
    assert main(["analyze", *options, "--profile", "llama-32b-a800", "--gpus", "64"]) == 0
    text = capsys.readouterr().out
    assert f"the best static strategy, {found['static']}, and" in text
    assert f"{found['ratio']:.2f} times as long" in text
    rows = [line.split() for line in text.splitlines() if line.startswith(("static", "search"))]
    # A row of times, and one of shares.
    assert [row[0] for row in rows] == ["static", "search"] * 2
    assert f"{found['search_ms']:,.1f}" in rows[1]
    drawn = ("analyze", *options, "--profile", "llama-32b-a800", "--gpus", "64", "--figure", "lengths.svg")
    assert main(drawn) == 0
    assert capsys.readouterr().out.endswith("written to lengths.svg\nwritten to lengths-compared.svg\n")
    content = Path("lengths-compared.svg").read_bytes()
    assert b"llama-32b-a800 on 64 GPUs" in content


def test_a_configuration_sets_all_options_of_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "examples/demo.toml").read_text(encoding="utf-8")
    Path("run.toml").write_text(f'{text}\n[[data.sources]]\nfiles = ["{TEXT}"]\n')
    found = document(capsys, "run.toml", "--count", "2")
    assert found["lengths"]["sequences"] == 8
    assert found["batches"]["tokens"] >= 16384


def test_layers_of_a_run_count(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "examples/demo.toml").read_text(encoding="utf-8")
    Path("run.toml").write_text(f'{text}\n[[data.sources]]\nfiles = ["{TEXT}"]\n')
    found = document(capsys, "run.toml", "--count", "2", "--set", "data.tokens_per_batch=600")
    assert 600 <= found["batches"]["tokens"] < 16384


def test_progress_is_reported_and_can_be_interrupted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    profiled = ("--profile", "llama-32b-a800", "--gpus", "64")
    arguments = ("analyze", TEXT, "--tokens-per-batch", "600", "--count", "3", *profiled)
    reports = collect_reports(monkeypatch)
    assert main(arguments) == 0
    assert {("sampling batches", 2, 3), ("simulating static", 2, 3), ("simulating search", 2, 3)} < set(
        reports
    )
    assert max(one.done for one in reports if one.name == "indexing") == 1000
    capsys.readouterr()
    for step in ("indexing", "sampling batches", "simulating search"):
        interrupt_at(monkeypatch, step)
        # A complete index reports nothing, and one in progress reports the rest.
        Path(".hydraulis").rename(f"kept before {step}")
        assert main(arguments) == EXIT_INTERRUPTED
        out, err = capsys.readouterr()
        assert out == ""
        assert (".hydraulis/index" in err) == (step == "indexing")
        assert err.endswith("hydraulis: interrupted\n")


def test_the_table_has_a_row_for_each_range(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", TEXT]) == 0
    out = capsys.readouterr().out
    lengths = lengths_of(TEXT)
    assert f"{len(lengths)} sequences, {sum(lengths):,} tokens" in out
    rows = [line for line in out.splitlines() if "%" in line and "-" in line.split()[0]]
    assert len(rows) == 7
    assert rows[-1].split()[:3] == ["512-579", "1", "12.5%"]
    assert "█" in rows[-1]


def test_a_figure_that_cannot_be_written_is_refused_before_the_work(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("hydraulis.cli.analysis.analyzed_data.prepare_sources")
    assert main(["analyze", TEXT, "--figure", "missing/lengths.png"]) == 2
    assert capsys.readouterr().err.startswith("hydraulis: error [file_unwritable]: ")


@pytest.mark.parametrize("name", ["lengths.png", "lengths.svg"])
def test_a_figure_is_drawn(capsys: pytest.CaptureFixture[str], name: str) -> None:
    found = document(capsys, TEXT, "--tokens-per-batch", "600", "--count", "3", "--figure", name)
    assert found["files"] == [name]
    content = Path(name).read_bytes()
    assert content.startswith(b"\x89PNG" if name.endswith("png") else b"<?xml")
    if name.endswith("svg"):
        assert b"512-579 tokens: 12.5 % of the sequences" in content


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], "option_invalid"),
        ([TEXT, "--lengths", "x"], "option_invalid"),
        ([TEXT, "--gpus", "8"], "option_invalid"),
        ([TEXT, "--gpus", "8", "--profile", "llama-7b-a800"], "option_invalid"),
        (["--lengths", "x", "--gpus", "8", "--profile", "llama-7b-a800"], "option_invalid"),
        ([TEXT, "--set", "data.max_tokens=9"], "option_invalid"),
        (["--lengths", "x", "--preset", "laptop"], "option_invalid"),
        ([TEXT, "--replicas", "2"], "option_invalid"),
        ([str(ROOT / "examples/demo.toml")], "option_invalid"),
        ([str(ROOT / "examples/demo.toml"), "--set", "dta.max_tokens=9"], "config_unknown_key"),
        *(([RUN, option, "5"], "option_invalid") for option in OF_RECORDS),
        *((["--lengths", "x", option, "5"], "option_invalid") for option in OF_RECORDS[1:]),
        ([RUN, "--format", "chat"], "option_invalid"),
        (["missing.jsonl"], "file_unreadable"),
        ([TEXT, "--field", "body"], "record_malformed"),
        ([TEXT, "--tokenizer", "missing"], "tokenizer_invalid"),
        (["--lengths", "missing.txt"], "file_unreadable"),
    ],
)
def test_a_refusal_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], code: str) -> None:
    assert_refused(capsys, ["analyze", *arguments], code)
