"""A corpus in memory: all documents end to end in one array, and where each of them starts.

It is two arrays and two counts, so one process can read the documents and send them to the others; what
else there is to know, the fingerprint included, each process derives from the arrays it holds. The arrays
are read-only: documents are handed out as views, never copied. It does not know where documents come from,
nor which tokens follow which in training.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from hydraulis.errors import InvalidInputError

_Scalar = TypeVar("_Scalar", bound=np.generic)


@dataclass(frozen=True, eq=False, kw_only=True)
class Corpus:
    """Documents as byte-level tokens.

    Attributes:
        token_T: the tokens of all documents, one after the other, as uint8.
        offset: where each document starts, as int64, and behind the last one the number of tokens.
        num_cut: how many documents were longer than the limit and lost their end.
        num_skipped_files: how many source files could not be read.

    Raises:
        InvalidInputError: there is no document (code `corpus_empty`), or the arrays do not fit together
            (`corpus_arrays`).
    """

    token_T: npt.NDArray[np.uint8]
    offset: npt.NDArray[np.int64]
    num_cut: int = 0
    num_skipped_files: int = 0

    def __post_init__(self) -> None:
        _check_array("token_T", self.token_T, np.uint8)
        _check_array("offset", self.offset, np.int64)
        _check_offset(self.offset, len(self.token_T))
        object.__setattr__(self, "token_T", _read_only(self.token_T))
        object.__setattr__(self, "offset", _read_only(self.offset))

    def __len__(self) -> int:
        return len(self.offset) - 1

    def tokens(self, index: int) -> npt.NDArray[np.uint8]:
        """Return the tokens of one document, as a read-only view.

        Raises:
            IndexError: there is no such document.
        """
        if not 0 <= index < len(self):
            message = f"document {index} must be one of the {len(self)} in the corpus; count them from 0"
            raise IndexError(message)
        return self.token_T[self.offset[index] : self.offset[index + 1]]

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The number of tokens of each document."""
        return _read_only(np.diff(self.offset))

    @cached_property
    def target_counts(self) -> npt.NDArray[np.int64]:
        """The number of targets of each document: its last token predicts nothing."""
        return _read_only(self.lengths - 1)

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of the tokens and of where they are cut, the same on every machine."""
        digest = hashlib.sha256(self.token_T.tobytes())
        digest.update(self.offset.astype("<i8").tobytes())
        return digest.hexdigest()

    def describe(self) -> dict[str, int | float | str]:
        """Return the statistics that belong in the log of a run."""
        median, p99 = np.percentile(self.lengths, (50, 99))
        return {
            "documents": len(self),
            "tokens": len(self.token_T),
            "median": float(median),
            "p99": float(p99),
            "longest": int(self.lengths.max()),
            "cut": self.num_cut,
            "skipped_files": self.num_skipped_files,
            "unigram_entropy_nats": self._unigram_entropy(),
            "fingerprint": self.fingerprint,
        }

    def _unigram_entropy(self) -> float:
        """The loss, in nats, of a model that knows how often each token occurs and nothing more."""
        counts = np.bincount(self.token_T)
        shares = counts[counts > 0] / len(self.token_T)
        return float(-(shares * np.log(shares)).sum())


def _check_array(name: str, array: npt.NDArray[np.generic], dtype: type[np.generic]) -> None:
    if array.dtype != dtype or array.ndim != 1:
        message = (
            f"{name} is {array.ndim}-dimensional {array.dtype} and must be "
            f"1-dimensional {np.dtype(dtype)}; convert it first"
        )
        raise InvalidInputError(message, code="corpus_arrays")


def _check_offset(offset: npt.NDArray[np.int64], num_tokens: int) -> None:
    if len(offset) < 2:
        message = (
            "offset describes 0 documents and must describe at least 1; check where the documents come from"
        )
        raise InvalidInputError(message, code="corpus_empty")
    if offset[0] != 0 or offset[-1] != num_tokens:
        message = (
            f"offset goes from {offset[0]} to {offset[-1]} and must go from 0 to {num_tokens}, the number "
            f"of tokens; give every token to one document"
        )
        raise InvalidInputError(message, code="corpus_arrays")
    empty = np.flatnonzero(np.diff(offset) <= 0)
    if len(empty):
        message = f"document {empty[0]} has no token and must have at least 1; leave empty documents out"
        raise InvalidInputError(message, code="corpus_arrays")


def _read_only(array: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
    view = array.view()
    view.flags.writeable = False
    return view
