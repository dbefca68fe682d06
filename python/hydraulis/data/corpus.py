"""Documents as tokens: all of them end to end in one array, and where each of them starts.

The arrays are in memory, or files that are mapped: then a document is read when it is asked for. They are
read-only, and documents are handed out as views, never copied. A corpus does not know where documents come
from, how long a sequence may be, nor which tokens follow which in training.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from hydraulis.data.tokens import MaskedTokens, SequenceTokens, Tokens
from hydraulis.errors import InvalidInputError

_Scalar = TypeVar("_Scalar", bound=np.generic)


@dataclass(frozen=True, eq=False, kw_only=True)
class Corpus:
    """Documents as tokens.

    Attributes:
        token_T: the tokens of all documents, one after the other, of any integer dtype.
        offset: where each document starts, as int64, and behind the last one the number of tokens.
        loss_mask_T: as bool, which tokens count in the loss when they are predicted; None if all do.
        left_out: how much was left out on the way here, by what it is; for the account of a run.
        first_broken: where the first records stand that were left out as broken, and what is wrong there.
        known_lengths: those that `offset` gives, where they are at hand; else they are computed.
        known_target_counts: the number of targets of each document, likewise.
        known_fingerprint: of the tokens, likewise; computing it reads all of them.
        known_largest_token: where it was seen on the way here; never computed.

    Raises:
        InvalidInputError: there is no document (code `corpus_empty`), or the arrays do not fit together
            (`data_file_invalid`).
    """

    token_T: Tokens
    offset: npt.NDArray[np.int64]
    loss_mask_T: npt.NDArray[np.bool_] | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)
    first_broken: Sequence[str] = ()
    known_lengths: npt.NDArray[np.int64] | None = None
    known_target_counts: npt.NDArray[np.int64] | None = None
    known_fingerprint: str | None = None
    known_largest_token: int | None = None

    def __post_init__(self) -> None:
        _check_array("token_T", self.token_T, np.integer)
        _check_array("offset", self.offset, np.int64)
        _check_offset(self.offset, len(self.token_T))
        object.__setattr__(self, "token_T", _read_only(self.token_T))
        object.__setattr__(self, "offset", _read_only(self.offset))
        if self.loss_mask_T is not None:
            _check_array("loss_mask_T", self.loss_mask_T, np.bool_)
            if len(self.loss_mask_T) != len(self.token_T):
                message = (
                    f"loss_mask_T has {len(self.loss_mask_T)} values for {len(self.token_T)} tokens; "
                    "give one for each"
                )
                raise InvalidInputError(message, code="data_file_invalid")
            object.__setattr__(self, "loss_mask_T", _read_only(self.loss_mask_T))

    def __len__(self) -> int:
        return len(self.offset) - 1

    def read(self, index: int) -> SequenceTokens:
        """Return the tokens of one document, as a read-only view, with their mask if there is one.

        Raises:
            IndexError: there is no such document.
        """
        if not 0 <= index < len(self):
            message = f"document {index} must be one of the {len(self)} in the corpus; count them from 0"
            raise IndexError(message)
        return self.slice(int(self.offset[index]), int(self.offset[index + 1]))

    def slice(self, start: int, stop: int) -> SequenceTokens:
        """Return tokens by their places among all of the corpus, as `read` does."""
        tokens = self.token_T[start:stop]
        return tokens if self.loss_mask_T is None else MaskedTokens(tokens, self.loss_mask_T[start:stop])

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The number of tokens of each document."""
        known = self.known_lengths
        return _read_only(np.diff(self.offset) if known is None else known)

    @cached_property
    def target_counts(self) -> npt.NDArray[np.int64]:
        """The number of targets of each document: its first token is predicted by nothing."""
        if self.known_target_counts is not None:
            return _read_only(self.known_target_counts)
        if self.loss_mask_T is None:
            return _read_only(self.lengths - 1)
        inside = np.add.reduceat(self.loss_mask_T, self.offset[:-1], dtype=np.int64)
        return _read_only(inside - self.loss_mask_T[self.offset[:-1]])

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of the tokens, of where they are cut and of what counts, the same on every machine."""
        if self.known_fingerprint is not None:
            return self.known_fingerprint
        digest = hashlib.sha256(self.token_T.astype(self.token_T.dtype.newbyteorder("<")).tobytes())
        digest.update(self.offset.astype("<i8").tobytes())
        if self.loss_mask_T is not None:
            digest.update(self.loss_mask_T.tobytes())
        return digest.hexdigest()

    def unigram_entropy(self, most_tokens: int = 1 << 24) -> float:
        """The loss, in nats, of a model that knows how often each token occurs and nothing more.

        Args:
            most_tokens: only so many of the first tokens are looked at.
        """
        _, counts = np.unique(self.token_T[:most_tokens], return_counts=True)
        shares = counts / counts.sum()
        return float(-(shares * np.log(shares)).sum())


def _check_array(name: str, array: npt.NDArray[Any], dtype: type[Any]) -> None:
    if not np.issubdtype(array.dtype, dtype) or array.ndim != 1:
        message = (
            f"{name} is {array.ndim}-dimensional {array.dtype} and must be "
            f"1-dimensional {dtype.__name__}; convert it first"
        )
        raise InvalidInputError(message, code="data_file_invalid")


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
        raise InvalidInputError(message, code="data_file_invalid")
    empty = np.flatnonzero(np.diff(offset) <= 0)
    if len(empty):
        message = f"document {empty[0]} has no token and must have at least 1; leave empty documents out"
        raise InvalidInputError(message, code="data_file_invalid")


def _read_only(array: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
    view = array.view()
    view.flags.writeable = False
    return view
