"""Documents as tokens: one array with all of them end to end, and the start of each.

The arrays are in memory or mapped from files, and read-only. Documents are views of them, never copies. A
corpus does not depend on the documents' files, the maximum length of a sequence or the order of training.

Legend: T tokens of the whole corpus.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from hydraulis.data.tokens import MaskedTokens, SequenceTokens, Tokens, digest_tokens
from hydraulis.errors import HydraulisError, InvalidInputError
from hydraulis.files import MappedFile

# Tokens of a document that one read hashes in a tenth of a millisecond.
_LONG = 1 << 16
_Scalar = TypeVar("_Scalar", bound=np.generic)


@dataclass(frozen=True, eq=False, kw_only=True)
class Corpus:
    """Documents as tokens.

    Attributes:
        token_T: Tokens of all documents, end to end, any integer dtype [T].
        offset: Start of each document, and T at the end, int64 [documents + 1].
        loss_mask_T: Whether each token is a target, bool [T]; None if every token is one.
        left_out: Number of left-out items by kind, for the report of a run.
        first_broken: Places and causes of the first broken records that were left out.
        known_lengths: Tokens of each document if stored; else computed from `offset`.
        known_target_counts: Targets of each document if stored; else computed.
        known_fingerprint: Fingerprint if stored; else computed from all tokens.
        known_largest_token: Largest token if known; never computed.
        known_digests: Digest of each document (see `digest_tokens`), uint64 [documents], which reading the
            document verifies; None if none is stored.
        files: Files that the arrays are mapped from.

    Raises:
        InvalidInputError: There is no document (code `corpus_empty`), or the arrays contradict each other
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
    known_digests: npt.NDArray[np.uint64] | None = None
    files: Sequence[MappedFile] = ()

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
        """Return the tokens of one document as a read-only view, with the loss mask if there is one.

        Raises:
            IndexError: The index is out of range.
        """
        if not 0 <= index < len(self):
            message = f"document {index} must be one of the {len(self)} in the corpus; count them from 0"
            raise IndexError(message)
        return self.slice(int(self.offset[index]), int(self.offset[index + 1]))

    def slice(self, start: int, stop: int) -> SequenceTokens:
        """Return the tokens from position `start` to before `stop` of one document, as `read` does.

        Raises:
            HydraulisError: A mapped file was shortened (code `data_file_invalid`), or the document does not
                match its digest (`index_damaged`).
        """
        for file in self.files:
            file.check()
        if self.known_digests is not None:
            self._verify(int(np.searchsorted(self.offset, start, side="right")) - 1, self.known_digests)
        return self._slice(start, stop)

    def _slice(self, start: int, stop: int) -> SequenceTokens:
        tokens = self.token_T[start:stop]
        return tokens if self.loss_mask_T is None else MaskedTokens(tokens, self.loss_mask_T[start:stop])

    def _verify(self, document: int, digests: npt.NDArray[np.uint64]) -> None:
        """Compare a document with its digest; a long one only once, because it is read in parts."""
        start, stop = (int(self.offset[document + edge]) for edge in (0, 1))
        if document in self._verified:
            return
        mask = None if self.loss_mask_T is None else self.loss_mask_T[start:stop]
        if digest_tokens(self.token_T[start:stop], mask) != int(digests[document]):
            message = (
                f"document {document} in '{self.files[0].path}' does not match its digest, so the file was "
                "changed: remove its folder to build the index again, and resume"
            )
            raise HydraulisError(message, code="index_damaged")
        if stop - start > _LONG:
            self._verified.add(document)

    @cached_property
    def _verified(self) -> set[int]:
        """Long documents that matched their digest."""
        return set()

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Number of tokens of each document, int64 [documents]."""
        known = self.known_lengths
        return _read_only(np.diff(self.offset) if known is None else known)

    @cached_property
    def target_counts(self) -> npt.NDArray[np.int64]:
        """Number of targets of each document, int64 [documents]; a first token is never a target."""
        if self.known_target_counts is not None:
            return _read_only(self.known_target_counts)
        if self.loss_mask_T is None:
            return _read_only(self.lengths - 1)
        inside = np.add.reduceat(self.loss_mask_T, self.offset[:-1], dtype=np.int64)
        return _read_only(inside - self.loss_mask_T[self.offset[:-1]])

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the tokens, the offsets and the loss mask, equal on every machine."""
        if self.known_fingerprint is not None:
            return self.known_fingerprint
        digest = hashlib.sha256(self.token_T.astype(self.token_T.dtype.newbyteorder("<")).tobytes())
        digest.update(self.offset.astype("<i8").tobytes())
        if self.loss_mask_T is not None:
            digest.update(self.loss_mask_T.tobytes())
        return digest.hexdigest()


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
            "offset describes 0 documents and must describe at least 1; check the source of the documents"
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
