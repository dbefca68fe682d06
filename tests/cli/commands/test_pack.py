import json
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from cli.invocation import assert_refused
from cli.reports import collect_reports
from hydraulis.batching import open_length_index, open_lengths
from hydraulis.cli.commands import pack as cli_pack
from hydraulis.cli.exit import EXIT_INTERRUPTED, EXIT_REFUSED
from hydraulis.cli.main import main


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    path = tmp_path / "lengths.npy"
    np.save(path, np.array([700, 400, 300, 600, 1000], dtype=np.uint16))
    return path


def options(lengths: Path, *more: str) -> list[str]:
    output = str(lengths.with_name("windows.npz"))
    return ["pack", "--lengths", str(lengths), "--window", "1000", "--output", output, *more]


def test_writes_the_windows_and_prints_their_number(
    lengths: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(options(lengths)) == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert "5 sequences with 3,000 tokens" in output.out
    assert "in 3 windows of 1,000 tokens, 100.00% full; at least 3 are needed" in output.out
    with np.load(lengths.with_name("windows.npz")) as written:
        assert sorted(written) == ["sequences", "window_offsets", "window_tokens"]
        assert written["sequences"].tolist() == [4, 0, 2, 1, 3]
        assert written["window_offsets"].tolist() == [0, 1, 3, 5]
        assert written["window_tokens"] == 1000


def test_prints_json(lengths: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(options(lengths, "--json")) == 0
    assert json.loads(capsys.readouterr().out) == {
        "sequences": 5,
        "tokens": 3000,
        "windows": 3,
        "lower_bound": 3,
        "window_tokens": 1000,
        "fill": 1.0,
        "files": [str(lengths.with_name("windows.npz"))],
    }


def test_reads_text_and_records_too(
    lengths: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, records = tmp_path / "lengths.txt", tmp_path / "records.jsonl"
    text.write_text("700\n400\n300\n600\n1000\n", encoding="utf-8")
    records.write_text("".join(f'{{"n": {n}}}\n' for n in (700, 400, 300, 600, 1000)), encoding="utf-8")
    for path, more in ((lengths, []), (text, []), (records, ["--field", "n"])):
        assert main(options(path, "--json", *more)) == 0
    one, two, three = capsys.readouterr().out.splitlines()
    assert one == two == three


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (["--window", "999"], "sequence_too_long"),
        (["--window", "0"], "option_invalid"),
        (["--field", "n"], "data_file_invalid"),
        (["--output", "no/such/folder/windows.npz"], "file_unwritable"),
        (["--output", "windows.txt"], "option_invalid"),
    ],
)
def test_a_refusal_leaves_no_file(
    lengths: Path, capsys: pytest.CaptureFixture[str], more: list[str], code: str
) -> None:
    assert_refused(capsys, options(lengths, *more), code)
    assert [path.name for path in lengths.parent.iterdir()] == ["lengths.npy"]


def test_the_longest_sequence_that_does_not_fit_is_named(
    lengths: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(options(lengths, "--window", "500")) == 2
    error = capsys.readouterr().err
    assert "[sequence_too_long]" in error
    assert [part for part in ("3 of 5", "500 tokens", "sequence 4", "1,000") if part not in error] == []


def test_an_interrupt_leaves_the_earlier_file_unchanged(
    lengths: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = lengths.with_name("windows.npz")
    output.write_bytes(b"before")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_pack, "pack_windows", interrupted)
    assert main(options(lengths)) == EXIT_INTERRUPTED
    assert output.read_bytes() == b"before"
    assert sorted(path.name for path in lengths.parent.iterdir()) == ["lengths.npy", "windows.npz"]


def test_progress_is_reported(lengths: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = lengths.with_suffix(".txt")
    np.savetxt(text, np.full(5_000, 300), fmt="%d")
    reports = collect_reports(monkeypatch)
    assert main(options(text)) == 0
    size = text.stat().st_size
    read = [one for one in reports if one.name == "reading the bytes of lengths.txt"]
    assert [one.total for one in read] == [size, size]
    assert read[0].done < read[1].done <= size
    packed = [one.done for one in reports if one.name == "packing"]
    assert packed == sorted(packed)
    assert packed[-1] == 1000


@pytest.mark.parametrize("window", ["4294967296", "9223372036854775808", "0", "-1", "4.5", "many"])
def test_a_window_is_a_number_of_tokens(
    lengths: Path, window: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(options(lengths, f"--window={window}")) == EXIT_REFUSED
    error = capsys.readouterr().err
    assert error.startswith(f"hydraulis: error [option_invalid]: --window: '{window}' ")


def test_writes_an_index_that_a_sampler_takes(lengths: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = lengths.with_name("lengths.index")
    assert main([*options(lengths)[:-1], str(folder)]) == 0
    assert "5 sequences with 3,000 tokens" in capsys.readouterr().out
    assert open_length_index(folder).window(1).tolist() == [0, 2]
    assert open_lengths(folder).tolist() == [700, 400, 300, 600, 1000]


def test_reads_columns(lengths: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parquet = lengths.with_name("data.parquet")
    pyarrow.parquet.write_table(
        pyarrow.table({"ids": [[0] * n for n in (700, 400, 300, 600, 1000)]}), parquet
    )
    assert main([*options(parquet), "--field", "ids"]) == 0
    assert "in 3 windows of 1,000 tokens" in capsys.readouterr().out
    assert main(options(parquet)) == 2
    assert "data_file_invalid" in capsys.readouterr().err
