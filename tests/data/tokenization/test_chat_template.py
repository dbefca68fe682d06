"""Which characters of a conversation count, and which conversations a template refuses."""

import json
from typing import Any

import pytest

from helpers import refused
from hydraulis.data.tokenization.chat_template import CHATML, ChatTemplate, load_template

MARKED = """\
{{ bos_token }}{% for message in messages %}
{%- if message.role == 'assistant' -%}
<a>{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}

{% else -%}
<u>{{ message.content }}
{% endif %}
{%- endfor %}"""
# As those of reasoning models do, it writes the reasoning of the last answer alone.
FORGETFUL = """\
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{{- '<a>' + ('<think></think>' if loop.last else '') + message.content.strip() + '<end>\\n' }}
{%- else %}{{ '<u>' + message.content + '\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<a>' }}{% endif %}"""
TALK = [("user", "hi"), ("assistant", "ho"), ("user", "and?"), ("assistant", "ho")]


def messages(*turns: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in turns]


def counted(source: str, *turns: tuple[str, str], **special: str) -> list[str]:
    rendered = ChatTemplate(source, special).render(messages(*turns))
    return [rendered.text[start:stop] for start, stop in rendered.spans]


def test_a_template_with_marks_gives_the_assistants_tokens() -> None:
    rendered = ChatTemplate(MARKED, {"bos_token": "<s>", "eos_token": "</s>"}).render(messages(*TALK))
    assert rendered.text == "<s><u>hi\n<a>ho</s>\n<u>and?\n<a>ho</s>\n"
    assert [rendered.text[start:stop] for start, stop in rendered.spans] == ["ho</s>", "ho</s>"]


def test_without_marks_the_text_that_a_message_adds_to_the_prompt_counts() -> None:
    rendered = ChatTemplate(CHATML, {}).render(messages(("system", "be"), *TALK))
    assert rendered.text.startswith("<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n")
    assert [rendered.text[a:b] for a, b in rendered.spans] == ["ho<|im_end|>\n", "ho<|im_end|>\n"]


def test_a_template_may_write_earlier_messages_differently() -> None:
    assert counted(FORGETFUL, *TALK) == ["ho<end>\n", "<think></think>ho<end>\n"]


def test_a_template_may_change_the_assistants_text() -> None:
    source = "{% for m in messages %}{{ m.content.strip() | upper }}{{ loop.last }}{% endfor %}"
    assert counted(source, ("user", "hi"), ("assistant", " ho\n"), ("user", "x")) == ["HOFalse"]


def test_a_conversation_without_an_assistant_counts_nowhere() -> None:
    for source in (MARKED, CHATML, FORGETFUL):
        assert counted(source, ("user", "hi"), bos_token="", eos_token="") == []


def test_filters_with_the_options_of_hugging_face_are_available() -> None:
    source = (
        "{% for m in messages %}{{ m | tojson(ensure_ascii=False) }}{{ m | tojson(indent=1) }}{% endfor %}"
    )
    message = {"role": "user", "content": "ü"}
    expected = json.dumps(message, ensure_ascii=False) + json.dumps(message, ensure_ascii=False, indent=1)
    assert ChatTemplate(source, {}).render([message]).text == expected


def test_tools_and_the_helpers_of_hugging_face_are_available() -> None:
    source = "{{ tools | tojson }}{% for m in messages %}{% break %}{% endfor %}"
    template = ChatTemplate(source, {})
    assert template.render(messages(("user", "x")), [{"name": "<ü>"}]).text == '[{"name": "<ü>"}]'


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("x\n{% for %}", "the chat template, line 2: "),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 3 }}", "the messages"),
        ("{{ ''.__class__.__mro__ }}", "the messages"),
        ("{{ messages.append(3) }}", "the messages"),
        ("{% for m in messages %}{{ m.role }}{{ loop.last }}{% endfor %}", "assistant's message 1"),
    ],
)
def test_an_invalid_template_is_refused(source: str, part: str) -> None:
    with refused("chat_template_invalid", part):
        ChatTemplate(source, {}).render(messages(*TALK))


@pytest.mark.parametrize(
    ("second", "cause", "value"),
    [
        ({"content": None, "tool_calls": [{"name": "f"}]}, "can only concatenate", "null"),
        ({"tool_calls": [{"name": "f"}]}, "no attribute 'content'", "absent"),
        ({"content": [{"type": "text"}]}, "can only concatenate", '[{"type": "text"}]'),
    ],
)
def test_content_without_a_text_is_named(second: dict[str, Any], cause: str, value: str) -> None:
    conversation = [*messages(("user", "x")), {"role": "assistant", **second}]
    with refused("chat_template_invalid", cause, "message 1", f"is {value};"):
        ChatTemplate(CHATML, {}).render(conversation)


@pytest.mark.parametrize(
    "expression",
    [
        "{{ 1 // 0 }}",
        "{{ '{}'.format() }}",
        "{{ range(10 ** 9) | length }}",
        "{{ 2.0 ** 5000 }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ 'a' * 10 ** 18 }}",
        "{{ 1e999 | int }}",
        "{{ messages[0].content.encode('ascii').decode('utf-16') }}",
    ],
)
def test_an_expression_that_fails_is_refused(expression: str) -> None:
    with refused("chat_template_invalid", "refuses the messages: ", "correct the messages or the template"):
        ChatTemplate(expression, {}).render([{"role": "user", "content": "x"}])


def test_text_cannot_forge_a_mark() -> None:
    for text in ("a\ufdd1b", "a\ufdd0"):
        with refused("record_malformed", "U+FDD0"):
            counted(MARKED, ("assistant", text))


def test_content_in_parts_is_accepted_by_a_template_that_keeps_prefixes() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    source = (
        "{% for m in messages %}{% if m.tool_calls %}[a]{{ m.tool_calls | tojson }}[e]{% else %}"
        "[{{ m.role[0] }}]{{ m.content }}[e]{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}[a]{% endif %}"
    )
    rendered = ChatTemplate(source, {}).render([*messages(("user", "x")), call])
    assert [rendered.text[a:b] for a, b in rendered.spans] == [json.dumps([{"name": "f"}]) + "[e]"]


@pytest.mark.parametrize(
    ("name", "remedy"), [("ChatLM", "did you mean 'chatml'?"), ("mine.jinja", "or to 'chatml'")]
)
def test_a_missing_template_is_named_with_the_nearest_name(name: str, remedy: str) -> None:
    with refused("chat_template_invalid", name, remedy):
        load_template(name)
