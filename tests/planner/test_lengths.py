import importlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from helpers import refused
from hydraulis.planner import map_lengths, read_lengths


def test_text_has_one_length_per_line(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_bytes(b"\xef\xbb\xbf 31000\n\n900\r\n\t+450 \n80")
    lengths = read_lengths(path)
    assert lengths.dtype == np.int64
    assert lengths.tolist() == [31000, 900, 450, 80]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "uint64", ">i4"])
def test_npy_files_of_any_integer_dtype_are_read(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "lengths.npy"
    np.save(path, np.array([3, 1, 127], dtype=dtype))
    lengths = read_lengths(str(path))
    assert lengths.dtype == np.int64
    assert lengths.tolist() == [3, 1, 127]


def test_jsonl_field_is_a_length_or_a_list_of_tokens(tmp_path: Path) -> None:
    path = tmp_path / "records.JSONL"
    path.write_text('{"id": "a", "tokens": [5, 6, 7]}\n\n{"tokens": 512}\n', encoding="utf-8")
    assert read_lengths(path, "tokens").tolist() == [3, 512]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("12\nlong\n", "line 2 is 'long'"),
        ("12\n\n12.0\n", "line 3 is '12.0'"),
        ("1_000\n", "line 1 is '1_000'"),
        ("١٢\n", "line 1 is"),
        ("3 4\n", "line 1 is '3 4'"),
        ("nan\n", "line 1 is 'nan'"),
        ("0\n", "line 1 has length 0: "),
        ("-7\n", "line 1 has length -7"),
        ("67108864\n67108865\n", "line 2 has length 67108865: it must be between 1 and 67,108,864"),
        ("9223372036854775808\n", "line 1 has length 9223372036854775808"),
        ("1" * 5000, f"line 1 is '{'1' * 40}...'"),
        ("", "0 lengths"),
        ("\n \n", "0 lengths"),
    ],
)
def test_a_wrong_line_of_text_is_named(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text(text, encoding="utf-8")
    with refused("data_file_invalid", path, part):
        read_lengths(path)


@pytest.mark.parametrize(
    ("array", "part"),
    [
        (np.array([3.0, 4.0]), "shape (2,) and dtype float64"),
        (np.array([True]), "shape (1,) and dtype bool"),
        (np.ones((2, 2), dtype=np.int64), "shape (2, 2)"),
        (np.array(5), "shape ()"),
        (np.array([5, 0, 3]), "element 1 has length 0"),
        (np.array([5, -3], dtype=np.int8), "element 1 has length -3"),
        (np.array([1, 2**63], dtype=np.uint64), "element 1 has length 9223372036854775808"),
        (np.array([], dtype=np.int64), "0 lengths"),
        (np.array([5, None], dtype=object), ".npy"),
    ],
)
def test_a_wrong_array_is_named(tmp_path: Path, array: np.ndarray, part: str) -> None:
    path = tmp_path / "lengths.npy"
    np.save(path, array)
    with refused("data_file_invalid", path, part):
        read_lengths(path)


@pytest.mark.parametrize("cut", [0, 5, 40, 130])
def test_a_broken_npy_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "lengths.npy"
    np.save(path, np.arange(1, 9))
    path.write_bytes(path.read_bytes()[:cut])
    with refused("data_file_invalid", ".npy"):
        read_lengths(path)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('{"n": 3}\n{"m": 4}\n', "line 2 has no field 'n', its fields are m"),
        ("{}\n", "line 1 has no field 'n', its fields are none"),
        ('{"n": "abc"}\n', "line 1, field 'n' is \"abc\""),
        ('{"n": 3.0}\n', "field 'n' is 3.0"),
        ('{"n": NaN}\n', "field 'n' is NaN"),
        ('{"n": true}\n', "field 'n' is true"),
        ('{"n": null}\n', "field 'n' is null"),
        ('{"n": []}\n', "field 'n' has length 0"),
        ('{"n": -1}\n', "field 'n' has length -1"),
        ('{"n": 9223372036854775808}\n', "field 'n' has length 9223372036854775808"),
        ("[3]\n", "line 1 is no JSON object"),
        ('\n{"n":\n', "line 2 is no JSON (Expecting value, column 6)"),
        ("[" * 100_000, "line 1 is no JSON ("),
        ("\n", "0 lengths"),
    ],
)
def test_a_wrong_record_is_named(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(text, encoding="utf-8")
    with refused("data_file_invalid", path, part):
        read_lengths(path, "n")


@pytest.mark.parametrize("read", [read_lengths, map_lengths])
def test_an_archive_of_arrays_is_no_array(tmp_path: Path, read: Callable[[Path], object]) -> None:
    np.savez(tmp_path / "lengths.npz", lengths=np.array([1, 2]))
    with refused("data_file_invalid", "lengths.npz", "archive", ".npy"):
        read(tmp_path / "lengths.npz")


def test_an_npy_with_the_first_bytes_of_a_zip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lengths.npy"
    path.write_bytes(b"PK\3\4abcdefghijkl")
    with refused("data_file_invalid", path):
        read_lengths(path)


@pytest.mark.parametrize(("name", "field"), [("a.jsonl", None), ("a.txt", "n"), ("a.npy", "n")])
def test_a_field_is_for_jsonl_files_only(tmp_path: Path, name: str, field: str | None) -> None:
    path = tmp_path / name
    path.write_text("{}\n", encoding="utf-8")
    with refused("data_file_invalid", name):
        read_lengths(path, field)


@pytest.mark.parametrize(("name", "field"), [("a.jsonl", "n"), ("a.txt", None), ("a.npy", None), (".", None)])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, field: str | None) -> None:
    with refused("file_unreadable", tmp_path):
        read_lengths(tmp_path / name, field)


@pytest.mark.parametrize(("name", "field"), [("a.jsonl", "n"), ("a.txt", None)])
def test_a_binary_file_is_named(tmp_path: Path, name: str, field: str | None) -> None:
    path = tmp_path / name
    path.write_bytes(b"12\n\xff\n")
    with refused("file_unreadable", "is not UTF-8"):
        read_lengths(path, field)


def test_an_npy_file_is_mapped_without_a_copy(tmp_path: Path) -> None:
    path = tmp_path / "lengths.npy"
    np.save(path, np.array([3, 0, 127], dtype=np.uint16))
    lengths = map_lengths(path)
    assert isinstance(lengths, np.memmap)
    assert (lengths.dtype, lengths.tolist()) == (np.uint16, [3, 0, 127])


def test_other_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("3\n4\n", encoding="utf-8")
    assert map_lengths(path).tolist() == [3, 4]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([3.0]), "dtype float64"),
        (np.ones((2, 2), dtype=np.int64), "shape (2, 2)"),
        (np.array([], dtype=np.int64), "holds 0 lengths"),
        (np.array([5, None], dtype=object), ".npy"),
    ],
)
def test_a_wrong_array_is_not_mapped(tmp_path: Path, array: np.ndarray, message: str) -> None:
    path = tmp_path / "lengths.npy"
    np.save(path, array)
    with refused("data_file_invalid", message):
        map_lengths(path)


def test_a_file_that_cannot_be_mapped_is_named(tmp_path: Path) -> None:
    with refused("file_unreadable", tmp_path):
        map_lengths(tmp_path / "missing.npy")
    with refused("data_file_invalid", "no fields"):
        map_lengths(tmp_path / "lengths.npy", "n")


@pytest.mark.parametrize(("module", "kind"), [("gzip", "gzip"), ("bz2", "bzip2"), ("lzma", "xz")])
def test_a_compressed_file_is_named_as_compressed(tmp_path: Path, module: str, kind: str) -> None:
    path = tmp_path / "lengths"
    path.write_bytes(importlib.import_module(module).compress(b"512\n" * 9))
    with refused("file_unreadable", path, f"compressed ({kind})"):
        read_lengths(path)


def test_a_compressed_file_is_refused_before_its_fields(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl.gz"
    with refused("file_unreadable", path, "compressed"):
        read_lengths(path, "length")
