"""The core tests what is packed; here stands what Python adds: arrays, progress, Ctrl-C and errors."""

import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import refused
from hydraulis import InfeasibleError, InvalidInputError, Windows, pack_windows

PIECE = 1 << 18  # what the binding reads at a time


def rows(windows: Windows) -> list[list[int]]:
    return [row.tolist() for row in np.split(windows.sequences, windows.window_offsets[1:-1])]


@given(lengths=st.lists(st.integers(1, 100), min_size=1, max_size=200))
def test_every_sequence_stands_in_one_window(lengths: list[int]) -> None:
    windows = pack_windows(lengths, window_tokens=100)
    assert sorted(windows.sequences.tolist()) == list(range(len(lengths)))
    filled = [sum(lengths[i] for i in row) for row in rows(windows)]
    assert len(windows) == len(filled) >= windows.lower_bound >= sum(lengths) / 100
    assert max(filled) <= 100
    assert windows.tokens == sum(lengths)
    assert windows.fill == pytest.approx(sum(lengths) / (100 * len(filled)))


@pytest.mark.parametrize("dtype", ["uint16", "int32", "uint32", "int64", "uint64", ">i4"])
def test_arrays_and_memory_maps_of_any_integer_dtype_are_packed(tmp_path: Path, dtype: str) -> None:
    lengths = [700, 400, 300, 600, 1000]
    path = tmp_path / "lengths.npy"
    np.save(path, np.array(lengths, dtype=dtype))
    mapped = pack_windows(np.load(path, mmap_mode="r"), window_tokens=1000)
    assert rows(mapped) == rows(pack_windows(lengths, window_tokens=1000)) == [[4], [0, 2], [1, 3]]
    assert mapped.sequences.dtype == mapped.window_offsets.dtype == np.int64


def long_tail(count: int) -> np.ndarray:
    return np.random.default_rng(0).lognormal(6.0, 1.2, count).astype(np.int32).clip(1, 8192)


def test_many_pieces_are_packed_with_progress() -> None:
    lengths = long_tail(2 * PIECE + 17)
    shares: list[float] = []
    windows = pack_windows(lengths, window_tokens=8192, progress=shares.append)
    assert shares == sorted(shares)
    assert len(shares) >= 8
    assert (0 < shares[0] < 0.2, shares[-1]) == (True, 1.0)
    filled = np.add.reduceat(lengths[windows.sequences], windows.window_offsets[:-1])
    assert filled.max() <= 8192
    assert np.array_equal(np.sort(windows.sequences), np.arange(lengths.size))
    assert len(windows) <= 1.0001 * windows.lower_bound + 1


def interrupt_main(share: float) -> None:
    if share > 0.5:
        signal.raise_signal(signal.SIGINT)


def fail(_: float) -> None:
    message = "enough"
    raise RuntimeError(message)


@pytest.mark.parametrize(("progress", "error"), [(interrupt_main, KeyboardInterrupt), (fail, RuntimeError)])
def test_an_exception_of_the_progress_callback_ends_the_packing(
    progress: Callable[[float], None], error: type[BaseException]
) -> None:
    with pytest.raises(error):
        pack_windows(long_tail(2 * PIECE), window_tokens=8192, progress=progress)


@pytest.mark.parametrize(
    ("lengths", "window", "code", "parts"),
    [
        ([], 10, "batch_empty", ()),
        ([3, 0], 10, "lengths_invalid", ("sequence 1 ", "length 0")),
        ([3, -2], 10, "lengths_invalid", ("sequence 1 ", "-2")),
        ([3, 4.5], 10, "lengths_invalid", ("sequence 1 ", "4.5")),
        ([[3, 4]], 10, "lengths_invalid", ("2 dimensions",)),
        (np.array([3, 2**63], dtype=np.uint64), 10, "lengths_invalid", ("sequence 1 ", 2**63)),
        ([3], 0, "argument_invalid", ("window_tokens is 0",)),
    ],
)
def test_bad_input_is_named(lengths: object, window: int, code: str, parts: tuple[object, ...]) -> None:
    with refused(code, *parts, kind=InvalidInputError):
        pack_windows(lengths, window_tokens=window)  # type: ignore[arg-type]


@pytest.mark.parametrize("place", [0, PIECE, PIECE + 5])
@pytest.mark.parametrize("dtype", ["int32", "uint64"])
def test_a_sequence_is_named_by_its_place_in_all_pieces(place: int, dtype: str) -> None:
    lengths = np.ones(PIECE + 10, dtype=dtype)
    lengths[place] = 11
    parts = (f"1 of {PIECE + 10:,} ", "10 tokens", f"sequence {place}, of 11")
    with refused("sequence_too_long", *parts, kind=InfeasibleError):
        pack_windows(lengths, window_tokens=10)


def test_a_length_beyond_int64_is_named_by_its_place_too() -> None:
    lengths = np.ones(PIECE + 10, dtype=np.uint64)
    lengths[PIECE + 5] = 2**63
    with refused("lengths_invalid", f"sequence {PIECE + 5} ", 2**63):
        pack_windows(lengths, window_tokens=10)


def test_lengths_that_change_meanwhile_are_refused() -> None:
    lengths = long_tail(PIECE + 10)

    def change(share: float) -> None:
        if share > 0.6:
            lengths[5] += 1

    with refused("lengths_invalid"):
        pack_windows(lengths, window_tokens=9000, progress=change)
