"""CSV files: quotes, texts of any length, and rows that are broken."""

import csv
import gzip
from pathlib import Path

import pytest

from helpers import refused
from hydraulis.data.records.fields import BrokenRecord
from hydraulis.data.records.record_file import open_records

TEXTS = ["plain", 'with, "quotes"', "two\nlines\r\nü", "x" * 300_000]


def records(path: Path, *fields: str) -> list[tuple[str, object]]:
    file = open_records(path, fields)
    return [(file.place(where), values) for ends in file.pieces() for where, values in file.records(*ends)]


def test_rows_are_records_named_by_their_first_line(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file).writerows([["id", "text"], *([str(n), text] for n, text in enumerate(TEXTS))])
    expected = [[text, str(n)] for n, text in enumerate(TEXTS)]
    assert [values for _, values in records(path, "text", "id")] == expected
    lines = [2, 3, 4, 7]
    assert [place for place, _ in records(path, "text")] == [f"file '{path}', line {n}" for n in lines]
    packed = tmp_path / "x.csv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert [values for _, values in records(packed, "text", "id")] == expected


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b"1,a,b", "has 3 fields, and the first line has 2"),
        (b"1", "has 1 field,"),
        (b'1,"a"b', "is no CSV"),
        (b"1,caf\xe9", "is not UTF-8"),
    ],
)
def test_a_broken_row_is_named_and_the_rows_after_it_are_read(
    tmp_path: Path, row: bytes, reason: str
) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b"id,text\n0,first\n" + row + b"\n\n2,last\n")
    first, (place, broken), last = records(path, "text")
    assert (first[1], last[1]) == (["first"], ["last"])
    assert isinstance(broken, BrokenRecord)
    assert place == f"file '{path}', line 3"
    assert reason in broken.reason


def test_an_open_quote_is_refused_by_the_line_that_opens_it(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('text\nfirst\n"open\nmore\n' + "good\n" * 997)
    with refused("data_file_invalid", path, "line 3 opens a quote that no line closes"):
        records(path, "text")


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        ('"text"x,b', "line 1 names the fields and is no CSV"),
        ("text,b,text", "line 1 names the field 'text' twice"),
    ],
)
def test_a_broken_first_line_is_refused(tmp_path: Path, first: str, reason: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f"{first}\ntext,1,2\nabcd,3,4\n")
    with refused("data_file_invalid", path, reason):
        records(path, "text")


@pytest.mark.parametrize(
    ("last", "reason"),
    [('end",b', "has 2 fields, and the first line has 1"), ('"end"', "is no CSV"), ('\xe9"', "is not UTF-8")],
)
def test_a_broken_row_of_several_lines_is_named_with_its_last_line(
    tmp_path: Path, last: str, reason: str
) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f'text\n"open\nmore\n{last}\nfirst\n', encoding="latin-1")
    (place, broken), *_ = records(path, "text")
    assert place.endswith("line 2")
    assert isinstance(broken, BrokenRecord)
    assert reason in broken.reason
    assert "opens a quote that ends in line 4" in broken.reason


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("id;text\n1;a\n")
    ((place, broken),) = records(path, "text")
    assert isinstance(broken, BrokenRecord)
    with refused("record_malformed", "line 2", "'text'", "id;text"):
        raise broken.error(place)
