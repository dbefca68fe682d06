"""JSON arrays, read by chunks of any size."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import refused
from hydraulis.data.records import json_array
from hydraulis.data.records.fields import BrokenRecord, UnreadableRestError
from hydraulis.data.records.json_array import parse_json_array
from hydraulis.data.records.record_file import open_records

VALUES = st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans(), st.none(), st.text())
OBJECTS = st.lists(st.dictionaries(st.text(), VALUES | st.lists(VALUES)))


@given(OBJECTS, st.integers(1, 50), st.sampled_from([None, 2]), st.booleans())
def test_every_element_is_read_once(objects: list[Any], size: int, indent: int | None, ascii_: bool) -> None:  # noqa: FBT001
    content = json.dumps(objects, indent=indent, ensure_ascii=ascii_).encode("utf-8", "surrogatepass")
    if b"\xed" in content:
        # Lone surrogates are no UTF-8.
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_array, "_CHUNK_BYTES", size)
        found = list(parse_json_array(BytesIO(b"\xef\xbb\xbf \n" + content + b"\n ")))
    assert found == list(enumerate(objects, start=1))


def test_elements_that_are_no_objects_are_broken() -> None:
    first, second, third, fourth = parse_json_array(BytesIO(b'[{"a": 1}, 12, [1], {"a": 2}]'))
    assert (first, fourth) == ((1, {"a": 1}), (4, {"a": 2}))
    for number, (found, broken) in enumerate((second, third), start=2):
        assert found == number
        assert isinstance(broken, BrokenRecord)


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b'[{"a": 1}, {"a": }, {"a": 3}]' + b" " * 100, "record 2 is no JSON (Expecting value"),
        (b'[{"a": 1} {"a": 2}]', "record 1 is no JSON (',' is expected"),
        (b'[{"a": 1}, {"a": 2}', "record 2 is no JSON (',' is expected, and the file ends"),
        (b'[{"a": 1}, {"a": "x', "record 2 is no JSON (the file ends within it"),
        (b'[{"a": 1},]', "record 2 is no JSON (Expecting value"),
        (b'[{"a": 1}] x', "record 1 is no JSON (text follows the array"),
        (b'[{"a": "\xe9"}]', "record 1 is no JSON (it is not UTF-8"),
        (b"[" * 5000, "record 1 is no JSON"),
        (b"[", "record 1 is no JSON"),
    ],
)
def test_an_array_with_an_error_is_refused_at_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, place: str, size: int
) -> None:
    monkeypatch.setattr(json_array, "_CHUNK_BYTES", size)
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with refused("data_file_invalid", path, place):
        list(open_records(path, ("a",)).records(0, 1))


def test_an_empty_array_has_no_record() -> None:
    assert list(parse_json_array(BytesIO(b" [ ] "))) == []


def test_an_error_early_in_a_large_file_reads_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_array, "_CHUNK_BYTES", 100)
    content = BytesIO(b'[{"a": }, ' + b'{"a": "x"}, ' * 1000 + b"1]")
    with pytest.raises(UnreadableRestError):
        list(parse_json_array(content))
    assert content.tell() <= 200


def test_lines_in_a_json_file_are_read_as_lines(tmp_path: Path) -> None:
    path = tmp_path / "lines.json"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    file = open_records(path, ("a",))
    assert [values for ends in file.pieces() for _, values in file.records(*ends)] == [[1], [2]]
