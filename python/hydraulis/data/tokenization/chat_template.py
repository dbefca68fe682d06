"""Renders a conversation as one text, with the character spans of the assistant's parts.

A template may mark the assistant's parts by `{% generation %}` and `{% endgeneration %}`; for other templates
`find_assistant_spans` finds them. A conversation is refused if the template leaves out its tools, its tool
calls, or the reasoning of its last message: the loss would count a text that lacks them.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydraulis.data.tokenization.assistant_spans import find_assistant_spans
from hydraulis.data.tokenization.left_out import (
    check_nothing_left_out,
    check_tools_not_left_out,
    leaves_out_earlier_reasoning,
)
from hydraulis.data.tokenization.message_parts import Message, MessagePart, PartMarks, mark_loops, read_parts
from hydraulis.data.tokenization.messages import WEIGHT, find_untrained
from hydraulis.data.tokenization.template_environment import BEGIN, END, make_environment
from hydraulis.errors import InvalidInputError
from hydraulis.extras import import_extra
from hydraulis.text.documents import describe_read_error
from hydraulis.text.values import as_short_json, did_you_mean, format_count

# Errors of a template's expressions, such as a division by zero or a macro that calls itself without end.
_TEMPLATE_FAILURES = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    NameError,
    RecursionError,
    TypeError,
    ValueError,
)

CHATML_NAME = "chatml"
CHATML = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def load_template(name: str) -> str:
    """Return the Jinja source of `chatml` or of a file.

    Raises:
        InvalidInputError: The file cannot be read (code `chat_template_invalid`).
    """
    if name == CHATML_NAME:
        return CHATML
    path = Path(name)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = describe_read_error(path, error) if isinstance(error, OSError) else error
        message = (
            f"chat template '{path}' cannot be read ({reason}); set data.chat_template (--chat-template of "
            f"hydraulis analyze) to a Jinja file, or to '{CHATML_NAME}'{did_you_mean(name, [CHATML_NAME])}"
        )
        raise InvalidInputError(message, code="chat_template_invalid") from error


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A rendered conversation.

    Attributes:
        text: The whole text.
        spans: First and end character of each of the assistant's parts, in rising order.
    """

    text: str
    spans: Sequence[tuple[int, int]]


class ChatTemplate:
    """A compiled template.

    Args:
        source: Jinja source.
        special_tokens: Texts of special tokens by name, for the template.
        name: Name of the template, for messages.

    Raises:
        InvalidInputError: The source is no template (code `chat_template_invalid`).
        HydraulisError: The library is not installed (code `extra_missing`).
    """

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], name: str = "the chat template"
    ) -> None:
        self._jinja: Any = import_extra("jinja2", "a chat template")
        environment = make_environment(self._jinja)
        unmarked = make_environment(self._jinja, marks_generation=False)
        try:
            self._template = environment.from_string(source)
            self._with_parts = unmarked.from_string(mark_loops(unmarked.parse(source)))
        except self._jinja.TemplateSyntaxError as error:
            place = f"{name}, line {error.lineno}"
            message = f"{place}: this is no Jinja template ({error.message}); correct it, or use another one"
            raise InvalidInputError(message, code="chat_template_invalid") from error
        self._marks_assistant = "endgeneration" in source
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Message], tools: Sequence[Any] | None = None) -> RenderedChat:
        """Render a conversation.

        Args:
            messages: Messages with a `role` and usually a `content`. The text of an assistant's message with
                a `weight` of 0 is in the text and in no span; the template does not see the weights.
            tools: Tools for the template to describe; None without any.

        Raises:
            InvalidInputError: The template refuses the messages, leaves a part of them out, or does not
                delimit the assistant's text (code `chat_template_invalid`).
        """
        _check_messages(messages, tools)
        # Each message is an object of its own, by which `PartMarks` knows it.
        untrained = find_untrained(messages)
        messages = [{key: part for key, part in message.items() if key != WEIGHT} for message in messages]
        conversation = Conversation(self, tools)
        text = conversation.text(messages)
        check_nothing_left_out(conversation, messages, text)
        if tools:
            check_tools_not_left_out(Conversation(self, None), messages, text)
        if self._marks_assistant:
            return _without_untrained(_without_marks(text), messages, untrained)
        parts = find_assistant_spans(conversation, messages, text)
        return RenderedChat(text, [part[1:] for part in parts if part.message not in untrained])

    @property
    def leaves_out_earlier_reasoning(self) -> bool:
        """Whether the reasoning of earlier messages is not written, and so not trained."""
        return leaves_out_earlier_reasoning(Conversation(self, None))

    def _render(self, template: Any, messages: Sequence[Message], values: Mapping[str, Any]) -> str:
        try:
            text: str = template.render(**self._special_tokens, **values, messages=messages, documents=None)
        except (self._jinja.TemplateError, *_TEMPLATE_FAILURES) as error:
            remedy = "correct the messages or the template"
            if isinstance(error, TypeError | self._jinja.UndefinedError):
                remedy = _where_no_text(messages) or remedy
            reason = str(error) or type(error).__name__
            message = f"the chat template refuses the messages: {reason}; {remedy}"
            raise InvalidInputError(message, code="chat_template_invalid") from error
        return text


class Conversation:
    """A template with the tools of one conversation.

    Args:
        template: The template.
        tools: Tools for the template to describe; None without any.
    """

    def __init__(self, template: ChatTemplate, tools: Sequence[Any] | None) -> None:
        self._of = template
        self._tools = tools

    def text(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str:
        """Return the text of messages.

        Raises:
            InvalidInputError: The template refuses the messages (code `chat_template_invalid`).
        """
        if not messages:
            return ""
        values = {"tools": self._tools, "add_generation_prompt": add_generation_prompt}
        return self._of._render(self._of._template, messages, values)

    def parts(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = False
    ) -> tuple[str, list[MessagePart]] | None:
        """Return the text of messages and its parts; None if the template tears the marks of the parts.

        Raises:
            InvalidInputError: The template refuses the messages (code `chat_template_invalid`).
        """
        values = {"tools": self._tools, "add_generation_prompt": add_generation_prompt}
        functions = PartMarks(messages).functions
        return read_parts(self._of._render(self._of._with_parts, messages, values | functions))


def _check_messages(messages: Sequence[Message], tools: Sequence[Any] | None) -> None:
    written = json.dumps([messages, tools], ensure_ascii=False, default=str)
    if BEGIN in written or END in written:
        message = "the messages contain the character U+FDD0 or U+FDD1, which is no text; replace it"
        raise InvalidInputError(message, code="record_malformed")


def _where_no_text(messages: Sequence[Message]) -> str:
    """Return a remedy for the first message without a text; an empty string if all have one."""
    for number, message in enumerate(messages):
        if not isinstance(message.get("content"), str):
            value = as_short_json(message["content"]) if "content" in message else "absent"
            return (
                f"the content of message {number}, counted from 0, is {value}; give it a text, or set "
                "data.chat_template (--chat-template) to a template that accepts it, such as one that writes "
                "tool calls"
            )
    return ""


def _without_untrained(
    rendered: RenderedChat, messages: Sequence[Message], untrained: Collection[int]
) -> RenderedChat:
    """Remove the marked spans of messages that are no targets."""
    if not untrained:
        return rendered
    numbers = [number for number, message in enumerate(messages) if message.get("role") == "assistant"]
    if len(numbers) != len(rendered.spans):
        message = (
            f"message {min(untrained)}, counted from 0, has the {WEIGHT} 0, and the chat template marks "
            f"{format_count(len(rendered.spans), 'part')} for {len(numbers)} of the assistant's messages; "
            "mark one part for each of them, or take the message out of the record"
        )
        raise InvalidInputError(message, code="chat_template_invalid")
    of_messages = zip(numbers, rendered.spans, strict=True)
    return RenderedChat(rendered.text, [span for number, span in of_messages if number not in untrained])


def _without_marks(marked: str) -> RenderedChat:
    """Remove the marks and return their spans."""
    parts: list[str] = []
    spans: list[tuple[int, int]] = []
    length = 0
    for number, part in enumerate(marked.split(BEGIN)):
        inside, mark, outside = part.partition(END) if number else ("", "", part)
        if bool(mark) != bool(number) or END in outside:
            message = "the chat template nests its marks of the assistant's text; mark each part separately"
            raise InvalidInputError(message, code="chat_template_invalid")
        if number:
            spans.append((length, length + len(inside)))
        parts += [inside, outside]
        length += len(inside) + len(outside)
    return RenderedChat("".join(parts), spans)
