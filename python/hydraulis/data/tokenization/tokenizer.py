"""Tokenizers: bytes, or a `tokenizer.json` of Hugging Face.

A tokenizer is a pure function of its files. `tokenizer_config.json` and `chat_template.jinja` in the same
folder have the end-of-document token and the format of conversations.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hydraulis.data.tokens import Tokens
from hydraulis.errors import InvalidInputError
from hydraulis.extras import import_extra
from hydraulis.text.documents import describe_read_error, hub_remedy, parse_json
from hydraulis.text.values import did_you_mean

Places = npt.NDArray[np.int64]

BYTES = "bytes"
_NUM_BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTokens:
    """The special tokens and the chat template in a tokenizer's files.

    Attributes:
        eos: Text of the token at the end of a document; empty for none.
        named: Text of every special token by its name, such as `bos_token`, for templates.
        chat_template: Jinja source of the template; empty for none.
    """

    eos: str = ""
    named: dict[str, str] = field(default_factory=dict)
    chat_template: str = ""


class Tokenizer(Protocol):
    """The interface of a tokenizer."""

    @property
    def special(self) -> SpecialTokens:
        """Special tokens and the chat template of its files."""

    @property
    def vocab_size(self) -> int:
        """The largest token plus 1."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of its files, which determine the tokens."""

    def token(self, text: str) -> int:
        """Return the token with this text."""

    def encode(self, text: str, *, special: bool) -> Tokens:
        """Return the tokens of a text; `special` includes those that the tokenizer adds around it."""

    def encode_with_places(self, text: str) -> tuple[Tokens, Places]:
        """Return the tokens of a text and the first character of each."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, special ones included; a broken character becomes U+FFFD."""


class ByteTokenizer:
    """A tokenizer whose tokens are the bytes of UTF-8."""

    special = SpecialTokens()
    vocab_size = _NUM_BYTES
    fingerprint = BYTES

    def token(self, text: str) -> int:
        """Return the byte of a text with one byte."""
        encoded = _utf8(text)
        if len(encoded) != 1:
            raise _no_token(text, BYTES)
        return encoded[0]

    def encode(self, text: str, *, special: bool) -> Tokens:  # noqa: ARG002
        """Return the bytes."""
        return np.frombuffer(_utf8(text), dtype=np.uint8)

    def encode_with_places(self, text: str) -> tuple[Tokens, Places]:
        """Return the bytes and the character of each."""
        tokens = np.frombuffer(_utf8(text), dtype=np.uint8)
        # The continuation bytes of a character begin with the bits 10.
        return tokens, np.cumsum((tokens & 0xC0) != 0x80) - 1

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text; a token that is no byte is an invalid one."""
        return bytes(token if token < _NUM_BYTES else 0xFF for token in tokens).decode(errors="replace")


class JsonTokenizer:
    """A `tokenizer.json`, read by the library tokenizers.

    Args:
        path: Path of the file or of its folder.

    Raises:
        InvalidInputError: A file of the tokenizer cannot be read (code `tokenizer_invalid`).
        HydraulisError: The library is not installed (code `extra_missing`).
    """

    def __init__(self, path: Path) -> None:
        file = path / "tokenizer.json" if path.is_dir() else path
        library = import_extra("tokenizers", f"the tokenizer '{file}'")
        content = _read(file)
        try:
            self._tokenizer: Any = library.Tokenizer.from_str(content.decode())
        except Exception as error:  # the library raises plain Exception
            message = f"tokenizer '{file}' cannot be read ({error}); give a tokenizer.json of Hugging Face"
            raise InvalidInputError(message, code="tokenizer_invalid") from error
        # Too long documents are cut and counted later.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._file = file
        self.special, other_files = _special_tokens(file.parent)
        tokens = self._tokenizer.get_vocab(with_added_tokens=True).values()
        if not tokens:
            message = f"tokenizer '{file}' has no token; give a tokenizer.json of Hugging Face"
            raise InvalidInputError(message, code="tokenizer_invalid")
        self.vocab_size: int = 1 + max(tokens)
        self.fingerprint = hashlib.sha256(content + other_files).hexdigest()

    @property
    def vocabulary(self) -> dict[int, str]:
        """Text of each token."""
        vocabulary: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        return {token: text for text, token in vocabulary.items()}

    def token(self, text: str) -> int:
        """Return the id of a token of the vocabulary.

        Raises:
            InvalidInputError: The vocabulary lacks it (code `tokenizer_invalid`).
        """
        token: int | None = self._tokenizer.token_to_id(text)
        if token is None:
            raise _no_token(text, str(self._file))
        return token

    def encode(self, text: str, *, special: bool) -> Tokens:
        """Return the tokens of a text; `special` includes those that the tokenizer adds around it."""
        _utf8(text)
        return np.array(self._tokenizer.encode(text, add_special_tokens=special).ids, dtype=np.int64)

    def encode_with_places(self, text: str) -> tuple[Tokens, Places]:
        """Return the tokens of a text and the first character of each."""
        _utf8(text)
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        places = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)[:, 0]
        return np.array(encoding.ids, dtype=np.int64), places

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text, without the tokens that the vocabulary lacks."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text


def load_tokenizer(name: str) -> Tokenizer:
    """Load a tokenizer by its name.

    Args:
        name: `bytes`, the path of a `tokenizer.json`, or the path of its folder.

    Raises:
        InvalidInputError: The file cannot be read (code `tokenizer_invalid`).
        HydraulisError: The library is not installed (code `extra_missing`).
    """
    return ByteTokenizer() if name == BYTES else JsonTokenizer(Path(name))


def _special_tokens(folder: Path) -> tuple[SpecialTokens, bytes]:
    """Read the other files in the folder of `tokenizer.json`; also return their bytes."""
    path = folder / "tokenizer_config.json"
    content = _read(path) if path.exists() else b"{}"
    try:
        settings = dict(parse_json(content.decode()))
    except (TypeError, ValueError) as error:
        message = f"'{path}' is no JSON object ({error}); correct it, or give a copy of tokenizer.json alone"
        raise InvalidInputError(message, code="tokenizer_invalid") from error
    named = {
        key: _token_text(value)
        for key, value in settings.items()
        if key.endswith("_token") and isinstance(value, str | dict)
    }
    template = settings.get("chat_template") or ""
    file = folder / "chat_template.jinja"
    if file.exists():
        source = _read(file)
        try:
            content, template = content + source, source.decode()
        except UnicodeDecodeError as error:
            message = f"'{file}' is no UTF-8 (byte {error.start}); save it as UTF-8 text"
            raise InvalidInputError(message, code="tokenizer_invalid") from error
    eos = named.get("eos_token", "")
    try:
        default = _default_template(template)
    except (KeyError, TypeError, ValueError) as error:
        message = f"'{path}' has a chat_template that is no text and no list of named texts; correct it"
        raise InvalidInputError(message, code="tokenizer_invalid") from error
    return SpecialTokens(eos=eos, named=named, chat_template=default), content


def _token_text(value: str | dict[str, Any]) -> str:
    return value if isinstance(value, str) else str(value.get("content", ""))


def _default_template(template: str | Sequence[dict[str, str]]) -> str:
    """Return the template; of several named ones, the default one."""
    if isinstance(template, str):
        return template
    return str({one["name"]: one["template"] for one in template}.get("default", ""))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        reason = describe_read_error(path, error)
        message = (
            f"tokenizer file '{path}' cannot be read ({reason}); give a tokenizer.json, its folder, or "
            f"'{BYTES}'{hub_remedy(str(path))}{did_you_mean(str(path), [BYTES])}"
        )
        raise InvalidInputError(message, code="tokenizer_invalid") from error


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        message = f"character {error.start} is half of a surrogate pair, which is no text; replace it"
        raise InvalidInputError(message, code="record_malformed") from error


def _no_token(text: str, tokenizer: str) -> InvalidInputError:
    message = f"tokenizer '{tokenizer}' has no token '{text}'; name one of its vocabulary"
    return InvalidInputError(message, code="tokenizer_invalid")
