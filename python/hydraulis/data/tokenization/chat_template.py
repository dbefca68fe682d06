"""Renders a conversation as one text, with the character spans of the assistant's parts.

Templates are part of a model's files, so they run in a sandbox: they cannot access attributes with a leading
underscore or change their inputs. They cannot read the date, so a conversation has the same text on any day.

There are two ways to find the assistant's parts. A template may mark them by `{% generation %}` and `{%
endgeneration %}`. For other templates, the prefixes of the conversation are rendered: the text that an
assistant's message adds after its prompt is the assistant's. Some templates render an earlier message
differently once others follow, such as those that drop earlier reasoning. For these, the content of each
message is marked and found in the rendered text.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydraulis.errors import InvalidInputError
from hydraulis.extras import import_extra
from hydraulis.text.nearest import did_you_mean
from hydraulis.text.paths import describe_read_error
from hydraulis.text.values import as_short_json

# Noncharacters, which Unicode reserves for internal use.
_BEGIN, _END = "\ufdd0", "\ufdd1"

_TOOL_CALLS = "tool_calls"

CHATML_NAME = "chatml"
CHATML = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

Message = Mapping[str, Any]


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
        try:
            self._template = _environment(self._jinja).from_string(source)
        except self._jinja.TemplateSyntaxError as error:
            place = f"{name}, line {error.lineno}"
            message = f"{place}: this is no Jinja template ({error.message}); correct it, or use another one"
            raise InvalidInputError(message, code="chat_template_invalid") from error
        self._marks_assistant = "endgeneration" in source
        self._writes_tool_calls = _TOOL_CALLS in source
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Message], tools: Sequence[Any] | None = None) -> RenderedChat:
        """Render a conversation.

        Args:
            messages: Messages with a `role` and usually a `content`.
            tools: Tools for the template to describe; None without any.

        Raises:
            InvalidInputError: The template refuses the messages or does not delimit the assistant's text
                (code `chat_template_invalid`).
        """
        _check_messages(messages, tools)
        marked = self._text(messages, tools)
        if not self._writes_tool_calls:
            _refuse_tool_calls(messages)
        if self._marks_assistant:
            return _without_marks(marked)
        spans = self._by_prefixes(messages, tools, marked)
        return RenderedChat(marked, spans if spans is not None else self._by_marks(messages, tools, marked))

    def _by_prefixes(
        self, messages: Sequence[Message], tools: Sequence[Any] | None, text: str
    ) -> list[tuple[int, int]] | None:
        """Render the prefixes before and after each assistant's message; None if `text` has another start."""
        spans = []
        for number in _assistant_places(messages):
            before = self._before(messages[:number], tools)
            with_it = self._text(messages[: number + 1], tools)
            if not (with_it.startswith(before) and text.startswith(with_it)):
                return None
            spans.append((len(before), len(with_it)))
        return spans

    def _by_marks(
        self, messages: Sequence[Message], tools: Sequence[Any] | None, text: str
    ) -> list[tuple[int, int]]:
        """Find each assistant's turn by marks around the content of its message."""
        marked = list(messages)
        places = _assistant_places(messages)
        for number in places:
            content = messages[number].get("content")
            if not isinstance(content, str):
                raise _cannot_tell(number)
            marked[number] = {**messages[number], "content": _marked(content)}
        found = _without_marks(self._text(marked, tools))
        if found.text != text or len(found.spans) != len(places):
            raise _cannot_tell(places[0])
        prompt = self._generation_prompt(messages, tools)
        spans: list[tuple[int, int]] = []
        for number, (start, end) in zip(places, found.spans, strict=True):
            turn = text.rfind(prompt, spans[-1][1] if spans else 0, start) if prompt else -1
            # The end of a turn is the text after the last message of a conversation.
            ending = _without_marks(self._text(marked[: number + 1], tools))
            rest = ending.text[ending.spans[-1][1] :]
            spans.append((start if turn < 0 else turn + len(prompt), end + _common_start(rest, text[end:])))
        return spans

    def _before(self, messages: Sequence[Message], tools: Sequence[Any] | None) -> str:
        return self._text(messages, tools, add_generation_prompt=True)

    def _generation_prompt(self, messages: Sequence[Message], tools: Sequence[Any] | None) -> str:
        """Return the prompt for an assistant's message."""
        first = _assistant_places(messages)[0]
        if first == 0:
            return ""
        return self._before(messages[:first], tools).removeprefix(self._text(messages[:first], tools))

    def _text(
        self, messages: Sequence[Message], tools: Sequence[Any] | None, *, add_generation_prompt: bool = False
    ) -> str:
        if not messages:
            return ""
        try:
            text: str = self._template.render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except (self._jinja.TemplateError, TypeError, ValueError, KeyError) as error:
            remedy = "correct the messages or the template"
            if isinstance(error, TypeError | self._jinja.UndefinedError):
                remedy = _where_no_text(messages) or remedy
            message = f"the chat template refuses the messages: {error}; {remedy}"
            raise InvalidInputError(message, code="chat_template_invalid") from error
        return text


def _check_messages(messages: Sequence[Message], tools: Sequence[Any] | None) -> None:
    written = json.dumps([messages, tools], ensure_ascii=False, default=str)
    if _BEGIN in written or _END in written:
        message = "the messages contain the character U+FDD0 or U+FDD1, which is no text; replace it"
        raise InvalidInputError(message, code="record_malformed")


def _refuse_tool_calls(messages: Sequence[Message]) -> None:
    """Refuse tool calls that the template leaves out; the assistant would learn empty messages."""
    for number, message in enumerate(messages):
        if message.get(_TOOL_CALLS):
            text = (
                f"message {number}, counted from 0, has {_TOOL_CALLS}, which the chat template does not "
                "write: set data.chat_template (--chat-template) to one that writes them, or leave the "
                "record out"
            )
            raise InvalidInputError(text, code="chat_template_invalid")


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


def _assistant_places(messages: Sequence[Message]) -> list[int]:
    return [number for number, message in enumerate(messages) if message.get("role") == "assistant"]


def _marked(content: str) -> str:
    # Templates strip the whitespace around a message.
    core = content.strip()
    before, _, after = content.partition(core) if core else (content, "", "")
    return f"{before}{_BEGIN}{core}{_END}{after}"


def _without_marks(marked: str) -> RenderedChat:
    """Remove the marks and return their spans."""
    parts: list[str] = []
    spans: list[tuple[int, int]] = []
    length = 0
    for number, part in enumerate(marked.split(_BEGIN)):
        inside, mark, outside = part.partition(_END) if number else ("", "", part)
        if bool(mark) != bool(number) or _END in outside:
            message = "the chat template nests its marks of the assistant's text; mark each part separately"
            raise InvalidInputError(message, code="chat_template_invalid")
        if number:
            spans.append((length, length + len(inside)))
        parts += [inside, outside]
        length += len(inside) + len(outside)
    return RenderedChat("".join(parts), spans)


def _common_start(one: str, other: str) -> int:
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))


def _cannot_tell(number: int) -> InvalidInputError:
    message = (
        f"the chat template does not delimit the text of assistant's message {number}: mark it "
        "in the template with {% generation %} and {% endgeneration %}"
    )
    return InvalidInputError(message, code="chat_template_invalid")


def _environment(jinja: Any) -> Any:
    """Make the sandbox with the extensions that templates of Hugging Face expect."""
    sandbox: Any = import_extra("jinja2.sandbox", "a chat template")
    nodes: Any = import_extra("jinja2.nodes", "a chat template")
    extension: Any = import_extra("jinja2.ext", "a chat template")

    class Generation(extension.Extension):  # type: ignore[misc]
        """The statement around the assistant's text."""

        tags = frozenset({"generation"})

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

        def _mark(self, caller: Any) -> str:
            return f"{_BEGIN}{caller()}{_END}"

    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, extension.loopcontrols]
    )

    def refuse(message: str) -> None:
        raise jinja.TemplateError(message)

    environment.globals["raise_exception"] = refuse
    environment.filters["tojson"] = _to_json
    return environment


def _to_json(value: object, indent: int | None = None, **options: Any) -> str:
    # Jinja's own filter escapes for HTML.
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)
