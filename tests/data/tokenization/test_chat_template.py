"""Which characters of a conversation count, by each of the three ways to know it."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


TEXTS = st.text(st.characters(exclude_characters="\ufdd0\ufdd1", exclude_categories=["Cs"]), max_size=8)


def messages(*turns: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in turns]


def counted(source: str, *turns: tuple[str, str], **special: str) -> list[str]:
    rendered = ChatTemplate(source, special).render(messages(*turns))
    return [rendered.text[start:stop] for start, stop in rendered.spans]


def test_a_template_that_marks_what_the_assistant_wrote() -> None:
    rendered = ChatTemplate(MARKED, {"bos_token": "<s>", "eos_token": "</s>"}).render(messages(*TALK))
    assert rendered.text == "<s><u>hi\n<a>ho</s>\n<u>and?\n<a>ho</s>\n"
    assert [rendered.text[start:stop] for start, stop in rendered.spans] == ["ho</s>", "ho</s>"]


def test_a_template_without_marks_counts_what_a_message_adds_beyond_the_prompt() -> None:
    rendered = ChatTemplate(CHATML, {}).render(messages(("system", "be"), *TALK))
    assert rendered.text.startswith("<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n")
    assert [rendered.text[a:b] for a, b in rendered.spans] == ["ho<|im_end|>\n", "ho<|im_end|>\n"]


def test_a_template_that_writes_earlier_messages_differently() -> None:
    assert counted(FORGETFUL, *TALK) == ["ho<end>\n", "<think></think>ho<end>\n"]


def test_a_template_may_change_what_was_written() -> None:
    source = "{% for m in messages %}{{ m.content.strip() | upper }}{{ loop.last }}{% endfor %}"
    assert counted(source, ("user", "hi"), ("assistant", " ho\n"), ("user", "x")) == ["HO"]


def test_a_conversation_without_an_assistant_counts_nowhere() -> None:
    for source in (MARKED, CHATML, FORGETFUL):
        assert counted(source, ("user", "hi"), bos_token="", eos_token="") == []


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), TEXTS), min_size=1, max_size=5))
def test_both_ways_without_marks_agree_with_the_marked_template(turns: list[tuple[str, str]]) -> None:
    """All three ways find the same parts of the assistant in a text that all render alike."""
    marked = (
        "{% for m in messages %}{% if m.role == 'assistant' %}[a]{% generation %}{{ m.content }}[e]"
        "{% endgeneration %}{% else %}[u]{{ m.content }}[e]{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}[a]{% endif %}"
    )
    plain = marked.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    expected = ChatTemplate(marked, {}).render(messages(*turns))
    found = ChatTemplate(plain, {})
    conversation = messages(*turns)
    assert found.render(conversation).text == expected.text
    if turns[0][0] != "assistant":
        # Before a first message there is no prompt to render.
        assert list(found.render(conversation).spans) == list(expected.spans)
    if any(role == "assistant" for role, _ in turns[1:]) and turns[0][0] != "assistant":
        assert found._by_marks(conversation, None, expected.text) == list(expected.spans)


def test_tools_and_the_helpers_of_hugging_face_are_there() -> None:
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
def test_a_template_is_refused(source: str, part: str) -> None:
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
    with refused("chat_template_invalid", cause, "content of message 1", f"is {value};"):
        ChatTemplate(CHATML, {}).render(conversation)


def test_calls_of_tools_that_a_template_would_leave_out_are_refused() -> None:
    calls = [{"type": "function", "function": {"name": "weather", "arguments": "{}"}}]
    talk = [*messages(("user", "weather?")), {"role": "assistant", "content": "", "tool_calls": calls}]
    with refused("chat_template_invalid", "message 1,", "tool_calls"):
        ChatTemplate(CHATML, {}).render(talk)
    writing = CHATML.replace("message.content", "(message.content or message.tool_calls | string)")
    assert "weather" in ChatTemplate(writing, {}).render(talk).text.partition("weather?")[2]
    # An empty list of calls is accepted.
    talk[1]["tool_calls"] = []
    assert ChatTemplate(CHATML, {}).render(talk).text


def test_nobody_can_forge_a_mark() -> None:
    for text in ("a\ufdd1b", "a\ufdd0"):
        with refused("record_malformed", "U+FDD0"):
            counted(MARKED, ("assistant", text))


def test_content_that_is_no_text_goes_with_a_template_that_keeps_to_its_beginnings() -> None:
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
