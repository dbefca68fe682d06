"""The job of an index: its inputs, the work on one piece of a file, and the progress of all processes."""

import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from hydraulis.config.data import CHAT_FORMATS, BrokenRecordsPolicy, RecordFormat
from hydraulis.data.index.broken_records import BrokenRecords
from hydraulis.data.records.fields import BrokenRecord
from hydraulis.data.records.record_file import RecordFile, open_records
from hydraulis.data.tokenization.chat_template import CHATML_NAME, ChatTemplate, load_template
from hydraulis.data.tokenization.encoder import (
    AlpacaEncoder,
    ChatEncoder,
    CompletionEncoder,
    Encoder,
    TextEncoder,
    TokensEncoder,
)
from hydraulis.data.tokenization.tokenizer import Tokenizer, load_tokenizer
from hydraulis.data.tokens import MaskedTokens, Tokens, count_targets, digest_tokens, plain_tokens
from hydraulis.errors import InvalidInputError
from hydraulis.progress import ShareCallback, ignore_share
from hydraulis.text.documents import describe_read_error

# Version of the content that this code makes from the same files.
FORMAT = 4
# Tokens of a block, which bounds the memory of a piece.
_BLOCK_TOKENS = 1 << 20
# Time between two reports of progress.
_REPORT_S = 0.2
# Number of broken records at the start of a file that suggests a wrong format.
_MAX_BROKEN = 100


class Piece(NamedTuple):
    """A range of positions of one file; the format defines a position."""

    file: int
    start: int
    stop: int

    def share(self, where: int) -> float:
        """Return the share of the piece before a position; the end of a piece may be an estimate."""
        return min(1.0, (where - self.start) / (self.stop - self.start))


class Block(NamedTuple):
    """Consecutive documents of a piece.

    Attributes:
        tokens: Tokens of all documents in the type of the job.
        loss_mask: Whether each token is a target, bool; None if the job has no mask.
        lengths: Tokens of each document, int64 [documents].
        target_counts: Targets of each document, int64 [documents].
        digests: Digest of each document (see `digest_tokens`), uint64 [documents].
        num_without_target: Number of documents left out because they have no target.
    """

    tokens: Tokens
    loss_mask: npt.NDArray[np.bool_] | None
    lengths: npt.NDArray[np.int64]
    target_counts: npt.NDArray[np.int64]
    digests: npt.NDArray[np.uint64]
    num_without_target: int


@dataclass(frozen=True, kw_only=True)
class IndexJob:
    """The inputs that determine the content of an index.

    Attributes:
        paths: Paths of the files with records, in order.
        format: Format of a record.
        fields: Names of the fields.
        optional_fields: Names of those that a record may lack.
        tokenizer: Name of the tokenizer; unused if the records are tokens.
        chat_template: `chatml`, a path, or empty for the tokenizer's own; for conversations only.
        eos_token: Token at the end of a document; empty for the tokenizer's own.
        broken_records: Treatment of unreadable records. It is not part of the index's name, so a run that
            skips them continues the index of a run that refused one.
    """

    paths: tuple[Path, ...]
    format: RecordFormat
    fields: tuple[str, ...]
    optional_fields: tuple[str, ...] = ()
    tokenizer: str
    chat_template: str
    eos_token: str
    broken_records: BrokenRecordsPolicy

    @cached_property
    def loaded_tokenizer(self) -> Tokenizer:
        """The loaded tokenizer."""
        return load_tokenizer(self.tokenizer)

    @cached_property
    def template_source(self) -> str:
        """The chat template as Jinja.

        Raises:
            InvalidInputError: There is no template, or its file cannot be read (code
                `chat_template_invalid`).
        """
        if self.chat_template:
            return load_template(self.chat_template)
        template = self.loaded_tokenizer.special.chat_template
        if not template:
            message = (
                f"data.tokenizer = '{self.tokenizer}' has no chat template: set data.chat_template "
                f"(--chat-template) to a Jinja file, or to '{CHATML_NAME}'"
            )
            raise InvalidInputError(message, code="chat_template_invalid")
        return template

    def encoder(self) -> Encoder:
        """Make the encoder from records to tokens."""
        if self.format == "tokens":
            return TokensEncoder(self.fields)
        if self.format in CHAT_FORMATS:
            template = self.compiled_template()
            chat = ChatEncoder if self.format == "chat" else AlpacaEncoder
            return chat(self.loaded_tokenizer, template, self.fields)
        kind = TextEncoder if self.format == "text" else CompletionEncoder
        return kind(self.loaded_tokenizer, self._eos(), self.fields)

    def compiled_template(self) -> ChatTemplate:
        """Compile the chat template of the conversations."""
        name = (
            f"chat template '{self.chat_template}'"
            if self.chat_template
            else f"the chat template of '{self.tokenizer}'"
        )
        return ChatTemplate(self.template_source, self.loaded_tokenizer.special.named, name)

    def _eos(self) -> int | None:
        text = self.eos_token or self.loaded_tokenizer.special.eos
        return self.loaded_tokenizer.token(text) if text else None

    @cached_property
    def dtype(self) -> np.dtype[np.generic]:
        """The smallest type for the tokens, little-endian."""
        largest = np.iinfo(np.int32).max if self.format == "tokens" else self.loaded_tokenizer.vocab_size - 1
        for name in ("<u1", "<u2"):
            if largest <= np.iinfo(name).max:
                return np.dtype(name)
        return np.dtype("<i4")

    def key(self) -> str:
        """Return the SHA-256 of the files (path, size and time of change), the tokenizer and the settings."""
        facts = {key: value for key, value in asdict(self).items() if key not in ("paths", "broken_records")}
        facts["format_version"] = FORMAT
        facts["files"] = self._stamps
        if self.format != "tokens":
            facts["tokenizer"] = self.loaded_tokenizer.fingerprint
        if self.format in CHAT_FORMATS:
            facts["chat_template"] = self.template_source
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    @cached_property
    def _stamps(self) -> list[tuple[str, int, int]]:
        return [file_stamp(path) for path in self.paths]

    def check_unchanged(self) -> None:
        """Refuse files that changed after the key was computed.

        Raises:
            InvalidInputError: A file was changed, replaced or removed (code `data_file_invalid`).
        """
        for path, before in zip(self.paths, self._stamps, strict=True):
            if file_stamp(path) != before:
                message = (
                    f"file '{path}' changed while it was indexed, so the index is removed: start again when "
                    "nothing writes the file any more"
                )
                raise InvalidInputError(message, code="data_file_invalid")

    def open(self, file: int) -> RecordFile:
        """Open one of the files."""
        return open_records(self.paths[file], self.fields, self.optional_fields)

    def pieces(self) -> list[Piece]:
        """Divide all files into pieces; the result is the same each time."""
        return [Piece(file, *ends) for file in range(len(self.paths)) for ends in self.open(file).pieces()]

    def blocks(
        self, piece: Piece, encoder: Encoder, progress: ShareCallback = ignore_share
    ) -> Iterator[Block | BrokenRecords]:
        """Yield the tokenized blocks of a piece, then its broken records if there are any.

        If broken records are refused, the records after the first one are not tokenized.

        Args:
            piece: Piece of one of the files.
            encoder: Encoder of the records.
            progress: Callback, called with the finished share of the piece after each block and in between.
        """
        records = self._records(piece, encoder)
        skipped = BrokenRecords(piece.file)
        documents: list[_Document] = []
        tokens = without_target = 0
        # Readable records before the current one in the file; an earlier piece has at least one.
        num_readable = int(piece.start > 0)
        reported_s = time.monotonic()
        for where, document in records:
            if time.monotonic() - reported_s > _REPORT_S:
                progress(piece.share(where))
                reported_s = time.monotonic()
            if isinstance(document, BrokenRecord):
                if self.broken_records == "refuse":
                    yield BrokenRecords.scan_piece(piece.file, num_readable, (where, document), records)
                    return
                skipped.add(where, document)
                continue
            num_readable += 1
            if document.num_targets == 0:
                without_target += 1
                continue
            documents.append(document)
            tokens += len(document.tokens)
            if tokens >= _BLOCK_TOKENS:
                yield self._block(documents, without_target)
                documents, tokens, without_target = [], 0, 0
                progress(piece.share(where))
        yield self._block(documents, without_target)
        if skipped.number:
            yield skipped
        progress(1.0)

    def encode_first(self, file: int, encoder: Encoder) -> bool:
        """Tokenize the first record of a file as a check; return whether the file has a record.

        If broken records are skipped, one readable record among the first 100 suffices.

        Raises:
            InvalidInputError: The record is refused; the message has its place.
        """
        opened = self.open(file)
        every = chain.from_iterable(opened.records(*ends) for ends in opened.pieces())
        broken = []
        for where, values in islice(every, 1 if self.broken_records == "refuse" else _MAX_BROKEN):
            document = _encode(encoder, values)
            if not isinstance(document, BrokenRecord):
                return True
            broken.append(document.error(opened.place(where)))
        if not broken:
            return False
        error = broken[0]
        if len(broken) > 1:
            message = f"none of the first {len(broken)} records can be read: {error}"
            raise InvalidInputError(message, code=error.code)
        raise error

    def _records(self, piece: Piece, encoder: Encoder) -> Iterator[tuple[int, "_Document | BrokenRecord"]]:
        for where, values in self.open(piece.file).records(piece.start, piece.stop):
            yield where, _encode(encoder, values)

    def _block(self, documents: Sequence["_Document"], without_target: int) -> Block:
        empty = np.zeros(0, dtype=self.dtype)
        masks = [document.loss_mask for document in documents if document.loss_mask is not None]
        return Block(
            tokens=np.concatenate([empty, *(document.tokens for document in documents)]).astype(self.dtype),
            loss_mask=np.concatenate(masks) if masks else None,
            lengths=np.array([len(document.tokens) for document in documents], dtype=np.int64),
            target_counts=np.array([document.num_targets for document in documents], dtype=np.int64),
            digests=np.array([document.digest(self.dtype) for document in documents], dtype=np.uint64),
            num_without_target=without_target,
        )


class _Document(NamedTuple):
    tokens: npt.NDArray[np.generic]
    loss_mask: npt.NDArray[np.bool_] | None
    num_targets: int

    def digest(self, dtype: np.dtype[np.generic]) -> int:
        return digest_tokens(self.tokens.astype(dtype), self.loss_mask)


def _encode(encoder: Encoder, values: Sequence[object] | BrokenRecord) -> _Document | BrokenRecord:
    if isinstance(values, BrokenRecord):
        return values
    try:
        sequence = encoder.encode(values)
    except InvalidInputError as error:
        return BrokenRecord(f": {error}", code=error.code)
    loss_mask = sequence.loss_mask if isinstance(sequence, MaskedTokens) else None
    return _Document(plain_tokens(sequence), loss_mask, count_targets(sequence))


def file_stamp(path: Path) -> tuple[str, int, int]:
    """Return the path, the size and the time of change of a file, which identify it without reading.

    Raises:
        InvalidInputError: The file cannot be read (code `data_file_invalid`).
    """
    try:
        status = path.stat()
    except OSError as error:
        message = (
            f"file '{path}' cannot be read ({describe_read_error(path, error)}); check the path and the file"
        )
        raise InvalidInputError(message, code="data_file_invalid") from error
    return str(path.resolve()), status.st_size, status.st_mtime_ns


class ProgressNotice(NamedTuple):
    """An answer of a process that only announces new progress in `SharedProgress`."""


class SharedProgress(NamedTuple):
    """The pieces that each process has finished, with the finished share of its current piece.

    The answers of the processes are read in the order of the pieces. Shared memory shows a process's progress
    before its turn.

    Attributes:
        file: Descriptor of a file in memory, with one double for each process.
    """

    file: int

    @classmethod
    def create(cls, processes: int) -> Self:
        """Create the memory for a number of processes."""
        file = os.memfd_create("finished-pieces")
        os.truncate(file, 8 * processes)
        return cls(file)

    def write(self, process: int, pieces: float) -> None:
        """Set the number of finished pieces of a process."""
        os.pwrite(self.file, np.float64(pieces).tobytes(), 8 * process)

    def total(self) -> float:
        """Add up the finished pieces of all processes."""
        pieces = os.pread(self.file, os.fstat(self.file).st_size, 0)
        return float(np.frombuffer(pieces, dtype=np.float64).sum())

    def close(self) -> None:
        """Close this process's descriptor; others keep theirs."""
        os.close(self.file)
