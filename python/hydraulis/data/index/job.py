"""What an index is made of, and the part of that work which one process does at a time."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hydraulis.config.data import Broken, RecordFormat
from hydraulis.data.index.broken_records import BrokenRecords
from hydraulis.data.records.fields import BrokenRecord
from hydraulis.data.records.record_file import RecordFile, open_records
from hydraulis.data.tokenization.chat_template import CHATML_NAME, ChatTemplate, load_template
from hydraulis.data.tokenization.encoder import (
    ChatEncoder,
    CompletionEncoder,
    Encoder,
    TextEncoder,
    TokensEncoder,
)
from hydraulis.data.tokenization.tokenizer import Tokenizer, load_tokenizer
from hydraulis.data.tokens import MaskedTokens, Tokens, count_targets, plain_tokens
from hydraulis.errors import InvalidInputError
from hydraulis.text.paths import describe_read_error

# Of what this code makes of the same files; raised when that changes.
FORMAT = 2
# A block is handed on when it holds this many tokens, so that no piece need fit into memory.
_BLOCK_TOKENS = 1 << 20
# Between two times that it is told how far a piece has come: often for an eye, seldom for the work.
_TELL_S = 0.2
# Where they are skipped: a file that begins with so many is of another kind than its source says.
_MOST_BROKEN = 100


class Piece(NamedTuple):
    """A range of one file: of the places where records of its kind stand."""

    file: int
    start: int
    stop: int

    def share(self, where: int) -> float:
        """Give the share of it that lies before a place in it."""
        return (where - self.start) / (self.stop - self.start)


class Block(NamedTuple):
    """Some documents of a piece, one after the other.

    Attributes:
        tokens: of all of them, in the dtype of the job.
        loss_mask: which of them count; None if the job has no mask.
        lengths: tokens of each document.
        target_counts: targets of each.
        num_without_target: documents that were left out because they train nothing.
    """

    tokens: Tokens
    loss_mask: npt.NDArray[np.bool_] | None
    lengths: npt.NDArray[np.int64]
    target_counts: npt.NDArray[np.int64]
    num_without_target: int


@dataclass(frozen=True, kw_only=True)
class IndexJob:
    """Everything that decides what an index holds.

    Attributes:
        paths: of the files with the records, in order.
        format: what a record is.
        fields: where in a record that stands.
        tokenizer: its name; not used if the records are tokens.
        chat_template: `chatml`, a file's path, or empty for the tokenizer's own; for conversations alone.
        eos_token: ends a document; empty for the tokenizer's own.
        broken: what becomes of records that cannot be read. It names no index, so that what was done of one
            until a record was refused is gone on with when they are skipped.
    """

    paths: tuple[Path, ...]
    format: RecordFormat
    fields: tuple[str, ...]
    tokenizer: str
    chat_template: str
    eos_token: str
    broken: Broken

    @cached_property
    def loaded_tokenizer(self) -> Tokenizer:
        """The tokenizer itself."""
        return load_tokenizer(self.tokenizer)

    @cached_property
    def template_source(self) -> str:
        """The chat template as Jinja.

        Raises:
            InvalidInputError: there is none, or its file cannot be read (code `chat_template_invalid`).
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
        """Make what turns a record into tokens."""
        if self.format == "tokens":
            return TokensEncoder(self.fields)
        if self.format == "chat":
            name = (
                f"chat template '{self.chat_template}'"
                if self.chat_template
                else f"the chat template of '{self.tokenizer}'"
            )
            template = ChatTemplate(self.template_source, self.loaded_tokenizer.special.named, name)
            return ChatEncoder(self.loaded_tokenizer, template, self.fields)
        kind = TextEncoder if self.format == "text" else CompletionEncoder
        return kind(self.loaded_tokenizer, self._eos(), self.fields)

    def _eos(self) -> int | None:
        written = self.eos_token or self.loaded_tokenizer.special.eos
        return self.loaded_tokenizer.token(written) if written else None

    @cached_property
    def dtype(self) -> np.dtype[np.generic]:
        """The smallest type of the tokens, little-endian on every machine."""
        largest = np.iinfo(np.int32).max if self.format == "tokens" else self.loaded_tokenizer.vocab_size - 1
        for name in ("<u1", "<u2"):
            if largest <= np.iinfo(name).max:
                return np.dtype(name)
        return np.dtype("<i4")

    def key(self) -> str:
        """Name the index: files (path, size and time of change), tokenizer and settings, as a SHA-256."""
        facts = {key: value for key, value in asdict(self).items() if key not in ("paths", "broken")}
        facts["format_version"] = FORMAT
        facts["files"] = [file_stamp(path) for path in self.paths]
        if self.format != "tokens":
            facts["tokenizer"] = self.loaded_tokenizer.fingerprint
        if self.format == "chat":
            facts["chat_template"] = self.template_source
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def open(self, file: int) -> RecordFile:
        """Open one of the files."""
        return open_records(self.paths[file], self.fields)

    def pieces(self) -> list[Piece]:
        """Cut all files into pieces, the same ones each time."""
        return [Piece(file, *ends) for file in range(len(self.paths)) for ends in self.open(file).pieces()]

    def blocks(
        self, piece: Piece, encoder: Encoder, tell: Callable[[float], None] = lambda _: None
    ) -> Iterator[Block | BrokenRecords]:
        """Read and tokenise the records of a piece; those that are broken come last, if there are any.

        Where broken records are refused nothing behind the first of them is tokenised.

        Args:
            piece: of one of the files.
            encoder: that tokenises.
            tell: called with the share of the piece that is done, once a block was taken and now and then
                between.
        """
        records = self._records(piece, encoder)
        skipped = BrokenRecords(piece.file)
        documents: list[_Document] = []
        tokens = without_target = 0
        told_s = time.monotonic()
        for where, document in records:
            if time.monotonic() - told_s > _TELL_S:
                tell(piece.share(where))
                told_s = time.monotonic()
            if isinstance(document, BrokenRecord):
                if self.broken == "refuse":
                    yield BrokenRecords.behind(piece.file, where, document, records)
                    return
                skipped.add(where, document)
                continue
            if document.num_targets == 0:
                without_target += 1
                continue
            documents.append(document)
            tokens += len(document.tokens)
            if tokens >= _BLOCK_TOKENS:
                yield self._block(documents, without_target)
                documents, tokens, without_target = [], 0, 0
                tell(piece.share(where))
        yield self._block(documents, without_target)
        if skipped.number:
            yield skipped
        tell(1.0)

    def encode_first(self, file: int, encoder: Encoder) -> bool:
        """Read and tokenise the first record of a file, to see whether it can be; tell whether it has one.

        Where broken records are skipped, the first of some that can be is enough.

        Raises:
            InvalidInputError: it is refused; the message has its place.
        """
        opened = self.open(file)
        every = chain.from_iterable(opened.records(*ends) for ends in opened.pieces())
        broken = []
        for where, values in islice(every, 1 if self.broken == "refuse" else _MOST_BROKEN):
            document = _encoded(encoder, values)
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
            yield where, _encoded(encoder, values)

    def _block(self, documents: Sequence["_Document"], without_target: int) -> Block:
        empty = np.zeros(0, dtype=self.dtype)
        masks = [document.loss_mask for document in documents if document.loss_mask is not None]
        return Block(
            tokens=np.concatenate([empty, *(document.tokens for document in documents)]).astype(self.dtype),
            loss_mask=np.concatenate(masks) if masks else None,
            lengths=np.array([len(document.tokens) for document in documents], dtype=np.int64),
            target_counts=np.array([document.num_targets for document in documents], dtype=np.int64),
            num_without_target=without_target,
        )


class _Document(NamedTuple):
    tokens: npt.NDArray[np.generic]
    loss_mask: npt.NDArray[np.bool_] | None
    num_targets: int


def _encoded(encoder: Encoder, values: Sequence[object] | BrokenRecord) -> _Document | BrokenRecord:
    if isinstance(values, BrokenRecord):
        return values
    try:
        sequence = encoder.encode(values)
    except InvalidInputError as error:
        return BrokenRecord(f": {error}", code=error.code)
    loss_mask = sequence.loss_mask if isinstance(sequence, MaskedTokens) else None
    return _Document(plain_tokens(sequence), loss_mask, count_targets(sequence))


def file_stamp(path: Path) -> tuple[str, int, int]:
    """Give what tells a file from another one without reading it: where it is, its size, when it changed.

    Raises:
        InvalidInputError: it cannot be read (code `data_file_invalid`).
    """
    try:
        status = path.stat()
    except OSError as error:
        message = (
            f"file '{path}' cannot be read ({describe_read_error(path, error)}); check the path and the file"
        )
        raise InvalidInputError(message, code="data_file_invalid") from error
    return str(path.resolve()), status.st_size, status.st_mtime_ns
