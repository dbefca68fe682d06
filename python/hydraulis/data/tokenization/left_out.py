"""The refusal of conversations whose tools, tool calls or reasoning the chat template leaves out.

A template leaves a part out if the text without the part is the same. Templates of reasoning models leave out
the reasoning of earlier messages, as they do when the model is prompted; this is accepted, and `hydraulis
check` says so.
"""

from collections.abc import Sequence
from typing import Protocol

from hydraulis.data.tokenization.message_parts import Message, MessagePart
from hydraulis.errors import InvalidInputError

# The second is OpenAI's older field.
_CALLS = ("tool_calls", "function_call")
_REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
_REASONING_END = "</think>"
# Words of an earlier and of the last message's reasoning, which no template contains.
_PROBES = ("8c1f0d", "b72e49")


class TextRenderer(Protocol):
    """A template with the tools of one conversation."""

    def text(self, messages: Sequence[Message]) -> str:
        """Return the text of messages."""

    def parts(self, messages: Sequence[Message]) -> tuple[str, list[MessagePart]] | None:
        """Return the text of messages and its parts; None if the template tears the marks of the parts."""


def check_nothing_left_out(renderer: TextRenderer, messages: Sequence[Message], text: str) -> None:
    """Refuse tool calls, and reasoning of the last message, that the template leaves out.

    Args:
        renderer: Template of the conversation.
        messages: Messages of the conversation.
        text: Text of the messages.

    Raises:
        InvalidInputError: The template leaves one of them out (code `chat_template_invalid`).
    """
    for field in _CALLS:
        for number in _suspects(renderer, messages, field):
            if _is_text_without(renderer, messages, number, field, text):
                raise _left_out(number, field)
    last = len(messages) - 1
    if messages[last].get("role") != "assistant":
        return
    for field in _REASONING_FIELDS:
        value = messages[last].get(field)
        if (
            isinstance(value, str)
            and value.strip()
            and _is_text_without(renderer, messages, last, field, text)
        ):
            raise _left_out(last, field)
    content = messages[last].get("content")
    if not isinstance(content, str) or _REASONING_END not in content:
        return
    reasoning, _, answer = content.rpartition(_REASONING_END)
    if reasoning.rpartition("<think>")[2].strip() and _is_text(
        renderer, [*messages[:last], {**messages[last], "content": answer}], text
    ):
        raise _left_out(last, f"reasoning before {_REASONING_END}")


def check_tools_not_left_out(without: TextRenderer, messages: Sequence[Message], text: str) -> None:
    """Refuse tools that the template leaves out.

    Args:
        without: Template of the conversation without its tools.
        messages: Messages of the conversation.
        text: Text of the messages with the tools.

    Raises:
        InvalidInputError: The template leaves them out (code `chat_template_invalid`).
    """
    if _is_text(without, messages, text):
        message = (
            "the record has tools, which the chat template does not write: set data.chat_template "
            "(--chat-template) to one that writes them, or take the field of the tools out of "
            "data.sources.fields (--field)"
        )
        raise InvalidInputError(message, code="chat_template_invalid")


def leaves_out_earlier_reasoning(renderer: TextRenderer) -> bool:
    """Whether a template writes the reasoning of the last message, and not that of earlier ones."""
    user = {"role": "user", "content": "x"}
    earlier, last = ({"role": "assistant", "content": f"<think>{one}</think>x"} for one in _PROBES)
    try:
        text = renderer.text([user, earlier, user, last])
    except InvalidInputError:
        return False
    return _PROBES[0] not in text and _PROBES[1] in text


def _suspects(renderer: TextRenderer, messages: Sequence[Message], field: str) -> list[int]:
    """Return the messages with a field whose own part of the text is the same if no message has the field.

    A rendering without the field of each single message would take quadratic time.
    """
    numbers = [number for number, message in enumerate(messages) if message.get(field)]
    if not numbers:
        return []
    without = [{key: value for key, value in message.items() if key != field} for message in messages]
    try:
        own, others = (_texts(renderer.parts(one)) for one in (messages, without))
    except InvalidInputError:
        # The template needs the field, or the text of another field: each message is looked at.
        return numbers
    return [number for number in numbers if own.get(number) == others.get(number)]


def _texts(rendered: tuple[str, list[MessagePart]] | None) -> dict[int | None, str]:
    """Return the text of each message's parts; none for a template that tears the marks."""
    texts: dict[int | None, str] = {}
    text, parts = rendered or ("", [])
    for number, start, stop in parts:
        texts[number] = texts.get(number, "") + text[start:stop]
    return texts


def _is_text_without(
    renderer: TextRenderer, messages: Sequence[Message], number: int, field: str, text: str
) -> bool:
    without = {key: value for key, value in messages[number].items() if key != field}
    return _is_text(renderer, [*messages[:number], without, *messages[number + 1 :]], text)


def _is_text(renderer: TextRenderer, messages: Sequence[Message], text: str) -> bool:
    try:
        return renderer.text(messages) == text
    except InvalidInputError:
        # The template needs the part, so it writes it.
        return False


def _left_out(number: int, part: str) -> InvalidInputError:
    message = (
        f"message {number}, counted from 0, has {part}, which the chat template does not write: set "
        "data.chat_template (--chat-template) to one that writes it, or take it out of the record"
    )
    return InvalidInputError(message, code="chat_template_invalid")
