"""Every kind of file gives the same records, in pieces that together are the whole."""

import gzip
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import refused
from hydraulis.data.records import json_lines
from hydraulis.data.records.fields import BrokenRecord
from hydraulis.data.records.record_file import RecordFile, open_records
from hydraulis.data.tokenization.chat_template import ChatTemplate
from hydraulis.data.tokenization.encoder import ChatEncoder
from hydraulis.data.tokenization.tokenizer import ByteTokenizer
from hydraulis.data.tokens import plain_tokens
from hydraulis.errors import InvalidInputError

ROWS: list[dict[str, Any]] = [
    {
        "text": f"row {n} ü",
        "ids": list(range(n % 5)),
        "other": n,
        "messages": [{"role": "user", "content": "x"}],
    }
    for n in range(20)
]


def write_json_lines(folder: Path) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


def write_parquet(folder: Path) -> Path:
    path = folder / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path, row_group_size=7)
    return path


def write_stream(folder: Path) -> Path:
    path = folder / "rows.arrow"
    table = pyarrow.Table.from_pylist(ROWS)
    with pyarrow.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    return path


def write_feather(folder: Path) -> Path:
    path = folder / "feather.arrow"
    pyarrow.feather.write_feather(pyarrow.Table.from_pylist(ROWS), path, compression="lz4", chunksize=6)
    return path


def write_gzip(folder: Path) -> Path:
    path = folder / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(write_json_lines(folder).read_bytes()))
    return path


def write_zstd(folder: Path) -> Path:
    path = folder / "rows.jsonl.zst"
    content = write_json_lines(folder).read_bytes()
    # Tools such as pzstd write several frames.
    path.write_bytes(b"".join(zstd(content[start : start + 500]) for start in range(0, len(content), 500)))
    return path


def zstd(content: bytes) -> bytes:
    buffer = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(buffer, "zstd") as stream:
        stream.write(content)
    packed: bytes = buffer.getvalue().to_pybytes()
    return packed


def write_array(folder: Path) -> Path:
    path = folder / "rows.json"
    path.write_text(json.dumps(ROWS, indent=1), encoding="utf-8")
    return path


WRITERS = (
    write_json_lines,
    write_parquet,
    write_stream,
    write_feather,
    write_gzip,
    write_zstd,
    write_array,
)
STREAMED = (write_gzip, write_zstd, write_array)
Writer = Callable[[Path], Path]


def read(file: RecordFile) -> list[list[Any]]:
    read = []
    for piece in file.pieces():
        for where, values in file.records(*piece):
            if isinstance(values, BrokenRecord):
                raise values.error(file.place(where))
            read.append([value.tolist() if isinstance(value, np.ndarray) else value for value in values])
    return read


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "PIECE_BYTES", 100)
    monkeypatch.setattr("hydraulis.data.records.arrow._PIECE_ROWS", 5)
    monkeypatch.setattr("hydraulis.data.records.json_array._CHUNK_BYTES", 7)
    monkeypatch.setattr("hydraulis.data.records.parquet._ROWS", 4)


@pytest.mark.parametrize("write", WRITERS)
def test_every_record_comes_once_and_in_order(tmp_path: Path, write: Writer) -> None:
    file = open_records(write(tmp_path), ("text", "ids", "messages"))
    assert (len(file.pieces()) == 1) if write in STREAMED else (len(file.pieces()) >= 3)
    assert read(file) == [[row["text"], row["ids"], row["messages"]] for row in ROWS]
    assert read(open_records(write(tmp_path), ("other", "text")))[3] == [3, "row 3 ü"]


@pytest.mark.parametrize("write", WRITERS)
def test_a_position_names_file_and_row(tmp_path: Path, write: Writer) -> None:
    path = write(tmp_path)
    file = open_records(path, ("other",))
    places = [
        (file.place(where), values[0]) for piece in file.pieces() for where, values in file.records(*piece)
    ]
    lines = {".jsonl": "line", ".gz": "line", ".zst": "line", ".json": "record"}
    first, word = (1, lines[path.suffix]) if path.suffix in lines else (0, "row")
    assert places == [(f"file '{path}', {word} {n + first}", n) for n in range(20)]


@pytest.mark.parametrize("write", WRITERS)
def test_an_absent_field_is_named_with_the_present_ones(tmp_path: Path, write: Writer) -> None:
    path = write(tmp_path)
    with refused("record_malformed", path, "'txt'", "text, ids", "--format chat"):
        read(open_records(path, ("txt",)))


@pytest.mark.parametrize("write", WRITERS)
def test_an_optional_field_may_be_absent(tmp_path: Path, write: Writer) -> None:
    file = open_records(write(tmp_path), ("text", "input", "other"), ["input", "other"])
    assert read(file)[3] == ["row 3 ü", None, 3]
    with refused("record_malformed", "'txt'"):
        read(open_records(write(tmp_path), ("txt", "input"), ["input"]))


def test_the_message_format_is_advised_only_for_files_of_conversations(tmp_path: Path) -> None:
    path = tmp_path / "body.jsonl"
    path.write_text('{"body": "x"}\n')
    with pytest.raises(InvalidInputError) as refusal:
        read(open_records(path, ("text",)))
    assert "--field" in str(refusal.value)
    assert "--format chat" not in str(refusal.value)


@given(
    st.lists(st.one_of(st.integers(0, 99).map(lambda n: json.dumps({"n": n})), st.sampled_from(["", "  "]))),
    st.integers(1, 30),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_lines_come_once_for_any_cut_of_the_file(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[str],
    size: int,
    end: str,
    last: bool,  # noqa: FBT001
) -> None:
    path = tmp_path_factory.getbasetemp() / "cut.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" * last + (end.join(lines) + end * last).encode())
    file = json_lines.JsonLines(path, ("n",))
    starts: Sequence[int] = range(0, path.stat().st_size, size)
    found = [values[0] for start in starts for _, values in file.records(start, start + size)]
    assert found == [json.loads(line)["n"] for line in lines if line.strip()]


class CountedFile(io.FileIO):
    """A file that counts the bytes that are read."""

    num_read = 0

    def readinto(self, buffer: Any) -> int:
        number = super().readinto(buffer) or 0
        CountedFile.num_read += number
        return number


def test_a_line_of_many_pieces_is_not_read_for_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "PIECE_BYTES", 1 << 16)
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"n": "x" * (1 << 22)}) + '\n{"n": "last"}\n')
    file = json_lines.JsonLines(path, ("n",))
    monkeypatch.setattr(Path, "open", lambda path, _: io.BufferedReader(CountedFile(path)))
    found = [values[0] for ends in file.pieces() for _, values in file.records(*ends)]
    assert [len(str(text)) for text in found] == [1 << 22, 4]
    # The line, and each piece of it.
    assert CountedFile.num_read < 3 * path.stat().st_size


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ('{"a": }', "line 3 is no JSON (Expecting value, column 7)"),
        # The position is within the line.
        ('{"a":', "line 3 is no JSON (Expecting value, column 6)"),
        ('{"a": "\udce9"}', "line 3 is not UTF-8 (byte 7)"),
        ("[1]", "line 3 is no JSON object"),
        ("[" * 5000, "line 3 is no JSON"),
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: str, names: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(f'{{"a": 1}}\n\n{line}\n', errors="surrogateescape")
    with refused("record_malformed", path, names):
        read(open_records(path, ("a",)))


def test_integers_with_nulls_stay_integers(tmp_path: Path) -> None:
    path = tmp_path / "nulls.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"ids": [[1, None], None, [2]]}), path)
    assert read(open_records(path, ("ids",))) == [[[1, None]], [None], [[2]]]


TOOLS_TEMPLATE = (
    "{{ tools | tojson }}{% for m in messages %}{{ m.role }}{{ m.content }}"
    "{{ m.tool_calls | default([]) | tojson }}{% endfor %}{% if add_generation_prompt %}assistant{% endif %}"
)


def test_conversations_with_tools_have_the_same_tokens_in_lines_and_in_columns(tmp_path: Path) -> None:
    """A column has the fields of all structs, with null for those that a record lacks; they are left out."""
    rows: list[dict[str, Any]] = [
        {
            "messages": [
                {"role": "user", "content": "?"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"function": {"name": name, "arguments": arguments}}],
                },
            ],
            "tools": [{"function": {"name": name, "parameters": parameters}}],
        }
        for name, arguments, parameters in [
            ("weather", {"city": "Rome"}, {"city": {"type": "string"}}),
            ("sum", {"of": [1, None]}, {"of": {"type": "array", "most": 2}}),
        ]
    ]
    lines = tmp_path / "calls.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    table = pyarrow.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, tmp_path / "calls.parquet")
    pyarrow.feather.write_feather(table, tmp_path / "calls.arrow")
    encoder = ChatEncoder(ByteTokenizer(), ChatTemplate(TOOLS_TEMPLATE, {}), ["messages", "tools"])
    fields = ("messages", "tools")
    found = {
        name: [plain_tokens(encoder.encode(values)).tobytes() for values in read(open_records(path, fields))]
        for name in ("jsonl", "parquet", "arrow")
        for path in [tmp_path / f"calls.{name}"]
    }
    assert found["parquet"] == found["arrow"] == found["jsonl"]


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow", "x.jsonl"])
def test_files_that_cannot_be_read_are_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with refused("data_file_invalid", name):
        open_records(path, ("a",))
    path.write_bytes(b"this is none of them")
    if name != "x.jsonl":
        with refused("data_file_invalid", path, {"x.parquet": "Parquet", "x.arrow": "Arrow"}[name]):
            open_records(path, ("a",))


def test_an_arrow_stream_whose_writer_was_stopped_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.arrow"
    with pyarrow.ipc.new_stream(path, pyarrow.schema([("a", pyarrow.int64())])) as writer:
        for start in range(3):
            writer.write_batch(pyarrow.record_batch({"a": [start, 0, 0]}))
    whole = path.read_bytes()
    assert len(read(open_records(path, ("a",)))) == 9
    # Without the mark, the last batch's padding is the end; or the last batch is missing too.
    batch = pyarrow.record_batch({"a": [2, 0, 0]}).serialize().size
    for missing in (8, 8 + batch):
        path.write_bytes(whole[:-missing])
        assert pyarrow.ipc.open_stream(path).read_all().num_rows == 9 - 3 * (missing > 8)
        with refused("data_file_invalid", path, "has no end"):
            open_records(path, ("a",))


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_field_that_a_file_has_twice_is_refused(tmp_path: Path, suffix: str) -> None:
    table = pyarrow.Table.from_arrays([pyarrow.array(["x"])] * 3, ["text", "other", "text"])
    path = tmp_path / f"twice.{suffix}"
    if suffix == "parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        with pyarrow.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    assert read(open_records(path, ("other",))) == [["x"]]
    with refused("record_malformed", path, "has the field 'text' twice"):
        open_records(path, ("text",))


def test_the_extra_is_named_where_pyarrow_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_parquet(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with refused("extra_missing", "'pyarrow'", "hydraulis[data]"):
        open_records(path, ("a",))
