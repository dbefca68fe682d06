"""From the fields of one record to the tokens of one document, by the record's format."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from hydraulis.data.tokenization.chat_template import ChatTemplate
from hydraulis.data.tokenization.tokenizer import Tokenizer
from hydraulis.data.tokens import MaskedTokens, SequenceTokens, Tokens
from hydraulis.errors import InvalidInputError
from hydraulis.text.numbers import format_count
from hydraulis.text.values import as_short_json

# As torch and transformers have it: a label that does not count.
IGNORED_LABEL = -100
LARGEST_TOKEN = int(np.iinfo(np.int32).max)


class Encoder(Protocol):
    """Turns the fields of a record into tokens.

    Attributes:
        masked: whether a loss mask goes with them.
    """

    masked: bool

    def encode(self, values: Sequence[object]) -> SequenceTokens:
        """Return the tokens of a record.

        Raises:
            InvalidInputError: a value is not what it must be (code `record_malformed`, or that of the
                template); the message does not know where the record stands.
        """


class TextEncoder:
    """A document: what the tokenizer makes of it, and what ends it.

    Args:
        tokenizer: of the model.
        eos: the token that ends a document; None if there is none.
        fields: of the records, to be named in refusals.
    """

    masked = False

    def __init__(self, tokenizer: Tokenizer, eos: int | None, fields: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._eos = eos
        self._fields = fields

    def encode(self, values: Sequence[object]) -> SequenceTokens:
        """Return the tokens of the text; see `Encoder`."""
        tokens = self._tokenizer.encode(_text(self._fields[0], values[0]), special=True)
        return _ended(tokens, self._eos)


class CompletionEncoder:
    """A prompt and what follows it: the latter counts, and what ends it.

    Each is tokenised by itself, as it will be when the model is asked.
    """

    masked = True

    def __init__(self, tokenizer: Tokenizer, eos: int | None, fields: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._eos = eos
        self._fields = fields

    def encode(self, values: Sequence[object]) -> SequenceTokens:
        """Return the tokens of prompt and completion; see `Encoder`."""
        first, second = (_text(field, value) for field, value in zip(self._fields, values, strict=True))
        prompt = self._tokenizer.encode(first, special=True)
        completion = _ended(self._tokenizer.encode(second, special=False), self._eos)
        # The tokenizer may end every text: here it goes on.
        if self._eos is not None and len(prompt) and prompt[-1] == self._eos:
            prompt = prompt[:-1]
        counts = np.zeros(len(prompt) + len(completion), dtype=np.bool_)
        counts[len(prompt) :] = True
        return MaskedTokens(np.concatenate((prompt, completion)), counts)


class ChatEncoder:
    """A conversation: what the assistant wrote counts.

    A token counts if its first character is the assistant's.
    """

    masked = True

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, fields: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._fields = fields

    def encode(self, values: Sequence[object]) -> SequenceTokens:
        """Return the tokens of the messages; see `Encoder`."""
        tools = values[1] if len(values) > 1 else None
        if tools is not None and not isinstance(tools, list):
            raise _value(self._fields[1], tools, "a list of tools")
        rendered = self._template.render(_messages(self._fields[0], values[0]), tools)
        tokens, places = self._tokenizer.encode_with_places(rendered.text)
        inside = np.zeros(len(rendered.text) + 1, dtype=np.bool_)
        for start, stop in rendered.spans:
            inside[start:stop] = True
        return MaskedTokens(tokens, inside[places])


class TokensEncoder:
    """Tokens already, and if wanted labels beside them: -100 where a token does not count."""

    def __init__(self, fields: Sequence[str]) -> None:
        self.masked = len(fields) > 1
        self._fields = fields

    def encode(self, values: Sequence[object]) -> SequenceTokens:
        """Return the tokens, and which of them have a label; see `Encoder`."""
        tokens = _integers(self._fields[0], values[0], "token")
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() <= LARGEST_TOKEN:
            wrong = tokens.min() if tokens.min() < 0 else tokens.max()
            message = (
                f"field '{self._fields[0]}' holds the token {wrong}: the limits are 0 and {LARGEST_TOKEN}; "
                "tokenize it again"
            )
            raise InvalidInputError(message, code="record_malformed")
        if not self.masked:
            return tokens
        labels = _integers(self._fields[1], values[1], "label")
        if len(labels) != len(tokens):
            message = (
                f"field '{self._fields[1]}' has {format_count(len(labels), 'label')} for "
                f"{format_count(len(tokens), 'token')}; give one for each"
            )
            raise InvalidInputError(message, code="record_malformed")
        return MaskedTokens(tokens, labels != IGNORED_LABEL)


def _ended(tokens: Tokens, eos: int | None) -> Tokens:
    if eos is None or (len(tokens) and tokens[-1] == eos):
        return tokens
    # An empty document stays empty, and is left out.
    return np.append(tokens, eos) if len(tokens) else tokens


def _text(field: str, value: object) -> str:
    if isinstance(value, bytes):
        message = f"field '{field}' holds bytes where a string must be; make the column one of strings"
        raise InvalidInputError(message, code="record_malformed")
    if not isinstance(value, str):
        raise _value(field, value, "a string")
    return value


def _messages(field: str, value: object) -> list[Mapping[str, Any]]:
    if not isinstance(value, list):
        raise _value(field, value, "a list of messages")
    if not value:
        message = (
            f"field '{field}' holds no message, and a conversation has at least 1; correct the record, or "
            "leave it out"
        )
        raise InvalidInputError(message, code="record_malformed")
    for number, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            place = f"{field}[{number}]"
            if isinstance(message, dict) and {"from", "value"} <= message.keys():
                text = (
                    f"field '{place}' has 'from' and 'value', as ShareGPT writes them; rename them to 'role' "
                    "and 'content', and human and gpt to user and assistant"
                )
                raise InvalidInputError(text, code="record_malformed")
            raise _value(place, message, 'a message such as {"role": "user", "content": "..."}')
    # Columns give every message every key that any of them has.
    return [
        {key: part for key, part in message.items() if part is not None or key == "content"}
        for message in value
    ]


def _integers(field: str, value: object, what: str) -> Tokens:
    array = np.asarray(value) if isinstance(value, list | np.ndarray) else None
    if array is not None and array.size == 0:
        return np.zeros(0, dtype=np.int64)
    if array is None or array.ndim != 1 or array.dtype.kind not in "iu":
        raise _value(field, value, f"a list of integers, one for each {what}")
    return array


def _value(field: str, value: object, wanted: str) -> InvalidInputError:
    held = as_short_json(value)
    message = f"field '{field}' holds {held} where {wanted} must be; correct the record, or leave it out"
    return InvalidInputError(message, code="record_malformed")
