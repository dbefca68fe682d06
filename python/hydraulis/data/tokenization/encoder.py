"""Encoders from the fields of one record to the tokens of one document, one for each record format."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hydraulis.data.tokenization.chat_template import ChatTemplate
from hydraulis.data.tokenization.messages import Message, join_instruction, read_messages
from hydraulis.data.tokenization.tokenizer import Tokenizer
from hydraulis.data.tokenization.values import integers_value, mask_value, refuse_value, text_value
from hydraulis.data.tokens import MaskedTokens, SequenceTokens, Tokens
from hydraulis.errors import InvalidInputError
from hydraulis.text.values import format_count

# The label of a token outside the loss in torch and transformers.
IGNORED_LABEL = -100
# Second fields of tokenized data that are masks, as TRL and transformers name them.
MASKS = ("loss_mask", "completion_mask", "assistant_masks")
LARGEST_TOKEN = int(np.iinfo(np.int32).max)


class Encoder(Protocol):
    """An encoder from the fields of a record to tokens.

    Attributes:
        masked: Whether the tokens have a loss mask.
    """

    masked: bool

    def encode(self, values: Sequence[object]) -> SequenceTokens:
        """Return the tokens of a record.

        Raises:
            InvalidInputError: A value is invalid (code `record_malformed`, or the template's); the message
                lacks the place of the record.
        """


class TextEncoder:
    """Encodes a text as a document.

    Args:
        tokenizer: Tokenizer of the model.
        eos: Token at the end of a document; None for none.
        fields: Names of the record's fields, for messages.
    """

    masked = False

    def __init__(self, tokenizer: Tokenizer, eos: int | None, fields: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._eos = eos
        self._fields = fields

    def encode(self, values: Sequence[object]) -> SequenceTokens:
        """Return the tokens of the text; see `Encoder`."""
        text = text_value(self._fields[0], values[0])
        # A tokenizer may add a first token to every text, and an empty document has none.
        if not text:
            return np.zeros(0, dtype=np.int64)
        return _ended(self._tokenizer.encode(text, special=True), self._eos)


class CompletionEncoder:
    """Encodes a prompt and a completion; the completion and its final token are targets.

    The two are tokenized separately, as they will be when the model is prompted.
    """

    masked = True

    def __init__(self, tokenizer: Tokenizer, eos: int | None, fields: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._eos = eos
        self._fields = fields

    def encode(self, values: Sequence[object]) -> SequenceTokens:
        """Return the tokens of prompt and completion; see `Encoder`."""
        first, second = (text_value(field, value) for field, value in zip(self._fields, values, strict=True))
        prompt = self._tokenizer.encode(first, special=True)
        completion = _ended(self._tokenizer.encode(second, special=False), self._eos)
        # A tokenizer may add the final token to every text, but the prompt does not end the document.
        if self._eos is not None and len(prompt) and prompt[-1] == self._eos:
            prompt = prompt[:-1]
        loss_mask = np.zeros(len(prompt) + len(completion), dtype=np.bool_)
        loss_mask[len(prompt) :] = True
        return MaskedTokens(np.concatenate((prompt, completion)), loss_mask)


class ChatEncoder:
    """Encodes a conversation; a token is a target if its first character is the assistant's.

    Args:
        tokenizer: Tokenizer of the model.
        template: Template of the conversations.
        fields: Names of the record's fields of messages and of tools, for messages.
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
            raise refuse_value(self._fields[1], tools, "a list of tools")
        return self._encode(read_messages(self._fields[0], values[0]), tools)

    def _encode(self, messages: Sequence[Message], tools: Sequence[Any] | None = None) -> SequenceTokens:
        rendered = self._template.render(messages, tools)
        tokens, places = self._tokenizer.encode_with_places(rendered.text)
        inside = np.zeros(len(rendered.text) + 1, dtype=np.bool_)
        for start, stop in rendered.spans:
            inside[start:stop] = True
        return MaskedTokens(tokens, inside[places])


class AlpacaEncoder(ChatEncoder):
    """Encodes an instruction, an input and an output as a conversation with one turn."""

    def encode(self, values: Sequence[object]) -> SequenceTokens:
        """Return the tokens of the turn; see `Encoder`."""
        return self._encode(join_instruction(self._fields, values))


class TokensEncoder:
    """Encodes tokenized data with an optional second field, which selects the targets.

    A field named in `MASKS` has 1 or true for each target. Any other field has labels: the token itself for a
    target, -100 for a token outside the loss.
    """

    def __init__(self, fields: Sequence[str]) -> None:
        self.masked = len(fields) > 1
        self._fields = fields

    def encode(self, values: Sequence[object]) -> SequenceTokens:
        """Return the tokens with the loss mask of the labels; see `Encoder`."""
        tokens = integers_value(self._fields[0], values[0], "token")
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() <= LARGEST_TOKEN:
            wrong = tokens.min() if tokens.min() < 0 else tokens.max()
            message = (
                f"field '{self._fields[0]}' has the token {wrong}: the limits are 0 and {LARGEST_TOKEN}; "
                "tokenize it again"
            )
            raise InvalidInputError(message, code="record_malformed")
        if not self.masked:
            return tokens
        return MaskedTokens(tokens, self._targets(tokens, values[1]))

    def _targets(self, tokens: Tokens, value: object) -> npt.NDArray[np.bool_]:
        """Return which tokens are targets, by the labels or the mask."""
        field = self._fields[1]
        is_mask = field in MASKS
        selected = mask_value(field, value) if is_mask else integers_value(field, value, "label")
        if len(selected) != len(tokens):
            message = (
                f"field '{field}' has {format_count(len(selected), 'value' if is_mask else 'label')} for "
                f"{format_count(len(tokens), 'token')}; give one for each"
            )
            raise InvalidInputError(message, code="record_malformed")
        if is_mask:
            return selected.astype(np.bool_)
        targets: npt.NDArray[np.bool_] = selected != IGNORED_LABEL
        wrong = np.flatnonzero(targets & (selected != tokens))
        if len(wrong):
            raise _wrong_label(field, int(wrong[0]), int(selected[wrong[0]]), int(tokens[wrong[0]]))
        return targets


def _wrong_label(field: str, place: int, label: int, token: int) -> InvalidInputError:
    message = (
        f"field '{field}' has the label {label} at place {place}, counted from 0, whose token is {token}: a "
        f"label is {IGNORED_LABEL} or its own token; do not shift labels, and name a mask of 0 and 1 one of "
        f"{', '.join(MASKS)}"
    )
    return InvalidInputError(message, code="record_malformed")


def _ended(tokens: Tokens, eos: int | None) -> Tokens:
    if eos is None or (len(tokens) and tokens[-1] == eos):
        return tokens
    # An empty document stays empty and is left out later.
    return np.append(tokens, eos) if len(tokens) else tokens
