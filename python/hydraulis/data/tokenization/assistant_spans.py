"""The character spans of the assistant's text in a conversation, for templates that do not mark them.

The assistant's text is the text that a model generates: the text that a message adds after the prompt for it.
If the rendered beginnings of the conversation are beginnings of its text, the text between them is exactly
this. Some templates render an earlier message differently once others follow, such as those that drop earlier
reasoning. For these, the span is the part that the template writes for the message, less the prompt.
"""

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Protocol

from hydraulis.data.tokenization.message_parts import Message, MessagePart
from hydraulis.errors import InvalidInputError

Span = tuple[int, int]

_ASSISTANT = "assistant"
# Noncharacters in place of the content of an assistant's message and of another one.
_CONTENT, _OTHER_CONTENT = "\ufdd2", "\ufdd3"
# With more than `_MANY` messages of the assistant, `_SOME` beginnings are rendered in place of all, if
# these suffice.
_MANY, _SOME = 25, 6
_TAG_ENDS = "\n>]"
# The conversation before a first message of the assistant.
_ANY_USER: Sequence[Message] = ({"role": "user", "content": "x"},)


class Renderer(Protocol):
    """A template with the tools of one conversation."""

    def text(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str:
        """Return the text of messages."""

    def parts(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = False
    ) -> tuple[str, list[MessagePart]] | None:
        """Return the text of messages and its parts; None if the template tears the marks of the parts."""


def find_assistant_spans(renderer: Renderer, messages: Sequence[Message], text: str) -> list[MessagePart]:
    """Find the spans of the assistant's text with their messages, in rising order.

    Args:
        renderer: Template of the conversation.
        messages: Messages of the conversation.
        text: Text of the messages.

    Raises:
        InvalidInputError: The template does not delimit the assistant's text (code `chat_template_invalid`).
    """
    numbers = [number for number, message in enumerate(messages) if message.get("role") == _ASSISTANT]
    if not numbers:
        return []
    if len(numbers) > _MANY:
        linear = _in_linear_time(renderer, messages, text, numbers)
        if linear is not None:
            return linear
    spans = _by_beginnings(renderer, messages, text, numbers)
    return _by_parts(renderer, messages, text, numbers)[0] if spans is None else spans


def _in_linear_time(
    renderer: Renderer, messages: Sequence[Message], text: str, numbers: Sequence[int]
) -> list[MessagePart] | None:
    """Take the parts, if the beginnings give the same spans; None if this is not sure.

    The beginnings take quadratic time, so a few of them are rendered. They give the parts' spans if each
    part starts with the whole prompt; if one of them is not a beginning of the text, the parts count.
    """
    try:
        spans, have_whole_prompts = _by_parts(renderer, messages, text, numbers)
    except InvalidInputError:
        return None
    some = sorted({numbers[len(numbers) * place // _SOME] for place in range(_SOME)} | {numbers[-1]})
    of_beginnings = _by_beginnings(renderer, messages, text, some)
    if of_beginnings is None:
        return spans
    are_same = of_beginnings == [span for span in spans if span.message in some]
    return spans if have_whole_prompts and are_same else None


def _by_beginnings(
    renderer: Renderer, messages: Sequence[Message], text: str, numbers: Sequence[int]
) -> list[MessagePart] | None:
    """Render the beginnings before and after each message; None if one is not a beginning of the text."""
    spans = []
    for number in numbers:
        if number == 0:
            return None
        try:
            before = renderer.text(messages[:number], add_generation_prompt=True)
            with_it = renderer.text(messages[: number + 1])
        except InvalidInputError:
            return None
        if not (with_it.startswith(before) and text.startswith(with_it)):
            return None
        spans.append(MessagePart(number, len(before), len(with_it)))
    return spans


def _by_parts(
    renderer: Renderer, messages: Sequence[Message], text: str, numbers: Sequence[int]
) -> tuple[list[MessagePart], bool]:
    """Take the parts that the template writes for each message, less the prompts.

    Returns:
        The spans, and whether each message has one part, which starts with the whole prompt.
    """
    rendered = renderer.parts(messages)
    if rendered is None or rendered[0] != text:
        raise _not_delimited(numbers[0])
    headers = _headers(renderer, messages, numbers)
    spans: list[MessagePart] = []
    # A prompt follows from the role before it; a rendering for each message would take quadratic time.
    prompts: dict[object, str] = {}
    are_whole = True
    parts = _parts_of_messages(rendered[1])
    for number in numbers:
        own = _merge(parts.get(number, ()))
        if not own:
            raise _not_delimited(number)
        (start, stop), *others = own
        header = text[start:stop] if headers is None else headers[number]
        if header is None:
            raise _not_delimited(number)
        role = messages[number - 1].get("role") if number else None
        if role not in prompts:
            prompts[role] = _prompt(renderer, messages[:number]) or _prompt(renderer, _ANY_USER)
        num_common = _num_common(prompts[role], text[start:stop], header)
        are_whole = are_whole and not others and num_common == len(prompts[role])
        start += num_common
        spans += [MessagePart(number, *span) for span in [(start, stop), *others]]
    if numbers[-1] == len(messages) - 1:
        # The end of the conversation is the end of its last message.
        spans[-1] = spans[-1]._replace(stop=len(text))
    return spans, are_whole


def _headers(
    renderer: Renderer, messages: Sequence[Message], numbers: Sequence[int]
) -> dict[int, str | None] | None:
    """Return the text between the start of each message's part and its content.

    The text is None if the part lacks the content, or has that of another message. The result is None if the
    template refuses other contents.
    """
    filled = [{**message, "content": _OTHER_CONTENT} for message in messages]
    for number in numbers:
        filled[number]["content"] = _CONTENT
    try:
        rendered = renderer.parts(filled)
    except InvalidInputError:
        return None
    if rendered is None:
        return None
    text, parts = rendered
    headers: dict[int, str | None] = {}
    of_messages = _parts_of_messages(parts)
    for number in numbers:
        part = "".join(text[start:stop] for start, stop in of_messages.get(number, ()))
        header, is_found, _ = part.partition(_CONTENT)
        headers[number] = header if is_found and _OTHER_CONTENT not in part else None
    return headers


def _prompt(renderer: Renderer, messages: Sequence[Message]) -> str:
    """Return the text after the last message, which prompts the assistant; empty if there is none."""
    if not messages:
        return ""
    try:
        rendered = renderer.parts(messages, add_generation_prompt=True)
    except InvalidInputError:
        return ""
    if rendered is None:
        return ""
    text, parts = rendered
    return text[max((stop for message, _, stop in parts if message is not None), default=0) :]


def _num_common(prompt: str, *starts: str) -> int:
    """Count the characters of the prompt with which all texts begin.

    A prompt may go on with the start of the reasoning, which an earlier message lacks: then only whole lines
    and tags count.
    """
    columns = zip(prompt, *starts, strict=False)
    common = prompt[: sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))]
    if common in (prompt, *starts):
        return len(common)
    return 1 + max(common.rfind(end) for end in _TAG_ENDS)


def _parts_of_messages(parts: Iterable[MessagePart]) -> dict[int | None, list[Span]]:
    spans: dict[int | None, list[Span]] = {}
    for number, start, stop in parts:
        spans.setdefault(number, []).append((start, stop))
    return spans


def _merge(spans: Iterable[Span]) -> list[Span]:
    """Join spans that touch."""
    merged: list[Span] = []
    for start, stop in spans:
        if merged and merged[-1][1] == start:
            merged[-1] = merged[-1][0], stop
        else:
            merged.append((start, stop))
    return merged


def _not_delimited(number: int) -> InvalidInputError:
    message = (
        f"the chat template does not delimit the text of assistant's message {number}: mark it "
        "in the template with {% generation %} and {% endgeneration %}"
    )
    return InvalidInputError(message, code="chat_template_invalid")
