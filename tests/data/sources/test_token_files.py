"""Megatron's indexed data sets, written here byte by byte as the format has them."""

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import refused, unopened
from hydraulis.data.sources.token_files import open_megatron, open_numpy_tokens
from hydraulis.data.tokens import plain_tokens

CODES = {"uint8": 1, "int32": 4, "uint16": 8}
SEQUENCES = [[1, 2, 3], [4], [5, 6], [], [7, 8, 9, 10]]


def write_megatron(
    folder: Path,
    sequences: Sequence[Sequence[int]] = SEQUENCES,
    bounds: Sequence[int] = (0, 1, 3, 4, 5),
    dtype: str = "uint16",
) -> Path:
    """Write sequences, and at which of them each document starts."""
    lengths = np.array([len(sequence) for sequence in sequences], dtype="<i4")
    pointers = (np.cumsum(lengths) - lengths) * np.dtype(dtype).itemsize
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, CODES[dtype], len(sequences), len(bounds))
    parts = (lengths, pointers.astype("<i8"), np.array(bounds, dtype="<i8"))
    (folder / "x.idx").write_bytes(head + b"".join(part.tobytes() for part in parts))
    (folder / "x.bin").write_bytes(np.array([t for s in sequences for t in s], dtype=dtype).tobytes())
    return folder / "x.idx"


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("suffix", [".idx", ".bin"])
def test_documents_are_mapped_whole_and_empty_ones_left_out(tmp_path: Path, dtype: str, suffix: str) -> None:
    corpus = open_megatron(write_megatron(tmp_path, dtype=dtype).with_suffix(suffix))
    documents = [plain_tokens(corpus.read(index)).tolist() for index in range(len(corpus))]
    assert documents == [[1, 2, 3], [4, 5, 6], [7, 8, 9, 10]]
    assert corpus.token_T.dtype == dtype
    assert not corpus.token_T.flags.owndata
    assert corpus.left_out == {"documents_without_token": 1}


def test_tokens_that_may_not_be_read_are_refused_by_name(tmp_path: Path) -> None:
    path = write_megatron(tmp_path)
    for name in ("x.idx", "x.bin"):
        with unopened(tmp_path / name), refused("data_file_invalid", tmp_path / name, "Permission denied"):
            open_megatron(path)


def test_tokens_are_a_view_of_the_file(tmp_path: Path) -> None:
    path = write_megatron(tmp_path)
    corpus = open_megatron(path)
    before = int(corpus.token_T[0])
    tokens = path.with_suffix(".bin")
    with tokens.open("r+b") as file:
        file.write((before + 1).to_bytes(corpus.token_T.itemsize, "little"))
    assert corpus.token_T[0] == before + 1


def test_the_fingerprint_covers_tokens_and_documents(tmp_path: Path) -> None:
    first = open_megatron(write_megatron(tmp_path)).fingerprint
    assert first == open_megatron(write_megatron(tmp_path)).fingerprint
    others = {
        open_megatron(write_megatron(tmp_path, [[1, 2, 4], *SEQUENCES[1:]])).fingerprint,
        open_megatron(write_megatron(tmp_path, bounds=(0, 2, 3, 4, 5))).fingerprint,
    }
    assert len({first, *others}) == 3


def damaged(path: Path, place: int, value: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[place : place + len(value)] = value
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (0, b"NO", "magic word"),
        (9, b"\x02", "version 2 with the dtype of code 8"),
        (17, b"\x06", "version 1 with the dtype of code 6"),
        (18, b"\xff", "too few for 255 sequences"),
        (34, b"\xff\xff\xff\xff", "sequences"),
        (54, b"\x02", "sequences"),
        (94, b"\x01", "documents"),
    ],
)
def test_a_damaged_index_is_refused(tmp_path: Path, place: int, value: bytes, says: str) -> None:
    path = write_megatron(tmp_path)
    damaged(path, place, value)
    with refused("data_file_invalid", says):
        open_megatron(path)


def test_inconsistent_files_are_refused(tmp_path: Path) -> None:
    path = write_megatron(tmp_path)
    path.with_suffix(".bin").write_bytes(b"\x00" * 18)
    with refused("data_file_invalid", ".bin", 18, ".idx", 20):
        open_megatron(path)
    path.with_suffix(".bin").unlink()
    with refused("data_file_invalid", "x.bin"):
        open_megatron(path)
    with refused("corpus_empty", "x.idx"):
        open_megatron(write_megatron(tmp_path, [[], []], (0, 1, 2)))


def saved(folder: Path, array: np.ndarray[Any, Any]) -> Path:
    np.save(folder / "tokens.npy", array)
    return folder / "tokens.npy"


def test_rows_are_documents_and_stay_mapped(tmp_path: Path) -> None:
    array = np.arange(12, dtype=np.int32).reshape(3, 4)
    corpus = open_numpy_tokens(saved(tmp_path, array))
    assert [plain_tokens(corpus.read(row)).tolist() for row in range(3)] == array.tolist()
    assert not corpus.token_T.flags.owndata
    assert open_numpy_tokens(saved(tmp_path, array.reshape(-1))).lengths.tolist() == [12]


def test_the_fingerprint_covers_the_tokens(tmp_path: Path) -> None:
    one, other = (open_numpy_tokens(saved(tmp_path, np.arange(n, n + 9))).fingerprint for n in (0, 1))
    assert one != other


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.zeros((2, 2, 2), dtype=int), "shape (2, 2, 2)"),
        (np.zeros(3), "dtype float64"),
        (np.zeros(0, dtype=int), "shape (0,)"),
        (np.zeros((2, 3), dtype=int, order="F"), "in C order"),
        (np.array([{}]), ".npy"),
    ],
)
def test_other_arrays_are_refused(tmp_path: Path, array: np.ndarray[Any, Any], says: str) -> None:
    with refused("data_file_invalid", says):
        open_numpy_tokens(saved(tmp_path, array))


@pytest.mark.parametrize("kind", ["megatron", "numpy"])
def test_a_file_that_is_shortened_under_way_ends_with_a_message(tmp_path: Path, kind: str) -> None:
    if kind == "megatron":
        corpus, path = open_megatron(write_megatron(tmp_path)), tmp_path / "x.bin"
    else:
        path = tmp_path / "x.npy"
        np.save(path, np.arange(12).reshape(3, 4))
        corpus = open_numpy_tokens(path)
    assert len(corpus.read(1))
    os.truncate(path, 3)
    with refused("data_file_invalid", path, 3):
        corpus.read(1)


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<i8', 'fortran_order': False, 'shape': (3,",
        b"{'descr': '<i8', 'fortran_order': False, 'shape': (" + b"(" * 3000,
        b"{'descr': '<i8', 'fortran_order': False, 'shape': (10**40,), }",
        b"{'descr': '<i8', 'fortran_order': False, 'shape': (1" + b"0" * 40 + b",), }",
        b"{'descr': '<i8', 'fortran_order': False, 'shape': (-4,), }",
        b"{'descr': [], 'fortran_order': False, 'shape': (3,), }",
        b"\xff" * 60,
    ],
)
def test_a_damaged_header_is_refused(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "x.npy"
    header = header.ljust(118)
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(64))
    with refused("data_file_invalid", path):
        open_numpy_tokens(path)


def test_an_archive_of_arrays_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", np.arange(3))
    path = (tmp_path / "x.npz").rename(tmp_path / "x.npy")
    with refused("data_file_invalid", path):
        open_numpy_tokens(path)
