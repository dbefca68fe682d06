from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hydraulis.data.sources.numpy_tokens import open_numpy_tokens
from hydraulis.data.tokens import plain_tokens
from hydraulis.errors import InvalidInputError


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
        (np.zeros((2, 2, 2), dtype=int), r"shape \(2, 2, 2\)"),
        (np.zeros(3), "dtype float64"),
        (np.zeros(0, dtype=int), r"shape \(0,\)"),
        (np.zeros((2, 3), dtype=int, order="F"), "in C order"),
        (np.array([{}]), "is no .npy array that can be read"),
    ],
)
def test_anything_else_is_refused(tmp_path: Path, array: np.ndarray[Any, Any], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says) as refusal:
        open_numpy_tokens(saved(tmp_path, array))
    assert refusal.value.code == "source_file"
