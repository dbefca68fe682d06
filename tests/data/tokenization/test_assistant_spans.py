"""The assistant's text under templates that do not mark it."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.tokenization.reasoning_templates import CALLS_WITHOUT_CONTENT, DROPS_EARLIER_REASONING, ENDS_ONCE
from helpers import refused
from hydraulis.data.tokenization import assistant_spans
from hydraulis.data.tokenization.chat_template import CHATML, ChatTemplate
from hydraulis.errors import InvalidInputError

WRITES_CALLS = CHATML.replace(
    "message.content", "message.content + message.tool_calls | default('') | string"
)
TEXTS = st.text(
    st.characters(exclude_characters="\ufdd0\ufdd1\ufdd2\ufdd3", exclude_categories=["Cs"]), max_size=8
)
CALLS = [{"type": "function", "function": {"name": "weather", "arguments": "{}"}}]


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def tool(content: str) -> dict[str, Any]:
    return {"role": "tool", "content": content}


def assistant(content: str | None, **others: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **others}


def counted(source: str, *messages: dict[str, Any]) -> list[str]:
    rendered = ChatTemplate(source, {"eos_token": "</s>"}).render(messages)
    return [rendered.text[start:stop] for start, stop in rendered.spans]


def test_several_turns_with_reasoning_are_found() -> None:
    assert counted(
        DROPS_EARLIER_REASONING,
        user("2+2?"),
        assistant("<think>\nEasy.\n</think>\n\nFour."),
        user("+3?"),
        assistant("<think>\nAlso.\n</think>\n\nSeven."),
    ) == ["Four.[end]\n", "<think>\nAlso.\n</think>\nSeven.[end]\n"]


def test_a_tool_call_with_empty_content_is_found() -> None:
    for content in ("", None):
        assert counted(
            DROPS_EARLIER_REASONING,
            user("Weather?"),
            assistant(content, tool_calls=CALLS),
            tool("Sun."),
            assistant("It is sunny."),
            user("Thanks."),
            assistant("<think>Polite.</think>Welcome."),
        ) == [
            "<call>weather</call>[end]\n",
            "It is sunny.[end]\n",
            "<think>\nPolite.\n</think>\nWelcome.[end]\n",
        ]


def test_a_turn_ends_before_the_first_character_of_the_next_tag() -> None:
    assert counted(ENDS_ONCE, user("2+2?"), assistant("Four."), user("+3?"), assistant("<|Seven|>")) == [
        "Four.<|end|>\n",
        "<|Seven|><|end|>\n</s>",
    ]


def test_a_prompt_with_the_start_of_the_reasoning_is_not_counted() -> None:
    talk = [user("2+2?"), assistant("<thing>"), user("+3?"), assistant("Seven.")]
    assert counted(CALLS_WITHOUT_CONTENT, *talk) == ["<thing><end>", "Seven.<end>"]
    calls = [user("Weather?"), assistant(None, tool_calls=CALLS), user("?"), assistant("Sun.")]
    assert counted(CALLS_WITHOUT_CONTENT, *calls) == ["<call>weather", "Sun.<end>"]


def test_a_first_message_of_the_assistant_has_the_prompt_of_later_ones() -> None:
    assert counted(ENDS_ONCE, assistant("Hello."), user("Hi."), assistant("Well?")) == [
        "Hello.<|end|>\n",
        "Well?<|end|>\n</s>",
    ]


def test_a_template_that_writes_other_messages_inside_the_assistants_is_refused() -> None:
    source = (
        "{% for m in messages %}{% if m.role != 'tool' %}[{{ m.role }}]{{ m.content }}"
        "{% if not loop.last and messages[loop.index].role == 'tool' %}{{ messages[loop.index].content }}"
        "{% endif %}{{ loop.length }}{% endif %}{% endfor %}"
    )
    with refused("chat_template_invalid", "assistant's message 1"):
        counted(source, user("Weather?"), assistant("Let me see."), tool("Sun."), assistant("Sunny."))


def test_a_template_that_changes_the_text_of_a_loop_is_refused() -> None:
    source = (
        "{% set text %}{% for m in messages %}{{ m.content }}{{ loop.length }}{% endfor %}{% endset %}"
        "{{ text | reverse }}"
    )
    with refused("chat_template_invalid", "assistant's message 1", "{% generation %}"):
        counted(source, user("a"), assistant("b"))


MARKED = (
    "{{ eos_token }}{% for m in messages %}{% if m.role == 'assistant' %}[a]{% generation %}{{ m.content }}"
    "[e]{% endgeneration %}{% else %}[u]{{ m.content }}[e]{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[a]{% endif %}"
)


@given(st.lists(st.tuples(st.sampled_from([user, assistant]), TEXTS), min_size=1, max_size=5))
def test_both_ways_agree_with_the_marked_template(turns: list[Any]) -> None:
    """Both ways find the assistant's parts of a text that the marked template renders alike."""
    messages = [make(text) for make, text in turns]
    expected = ChatTemplate(MARKED, {"eos_token": "</s>"}).render(messages)
    plain = MARKED.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    found = ChatTemplate(plain, {"eos_token": "</s>"}).render(messages)
    assert found.text == expected.text
    assert list(found.spans) == list(expected.spans)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assistant_spans, "_by_beginnings", lambda *_: None)
        by_parts = ChatTemplate(plain, {"eos_token": "</s>"}).render(messages)
    assert list(by_parts.spans) == list(expected.spans)


KEEPS_REASONING = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ m.tool_calls | default('') }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant><think>{% endif %}"
)
SOURCES = (CHATML, DROPS_EARLIER_REASONING, ENDS_ONCE, CALLS_WITHOUT_CONTENT, KEEPS_REASONING)
TURNS = st.one_of(
    st.builds(user, TEXTS),
    st.builds(tool, TEXTS),
    st.builds(assistant, TEXTS),
    st.builds(lambda text: assistant(f"<think>{text}</think>{text}"), TEXTS),
    st.builds(lambda text: assistant(text, tool_calls=CALLS), st.sampled_from(["", None, "x"])),
)


def spans_or_refusal(source: str, messages: list[dict[str, Any]], many: int) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assistant_spans, "_MANY", many)
        patch.setattr(assistant_spans, "_SOME", 2)
        try:
            return list(ChatTemplate(source, {"eos_token": "</s>"}).render(messages).spans)
        except InvalidInputError as error:
            return str(error)


@settings(max_examples=100)
@given(st.sampled_from(SOURCES), st.lists(TURNS, min_size=1, max_size=8))
def test_a_long_conversation_has_the_spans_of_a_short_one(source: str, messages: list[Any]) -> None:
    assert spans_or_refusal(source, messages, 0) == spans_or_refusal(source, messages, 1000)


MARKED_CALLS = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "{{ m.tool_calls | default('') }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("source", [DROPS_EARLIER_REASONING, WRITES_CALLS, MARKED_CALLS])
def test_a_long_conversation_is_rendered_a_few_times(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    renderings = []
    render = ChatTemplate._render

    def counting(*arguments: Any) -> str:
        renderings.append(1)
        return render(*arguments)

    monkeypatch.setattr(ChatTemplate, "_render", counting)
    turns = [user("?"), assistant("x", tool_calls=CALLS), tool("Sun."), assistant("Sunny.")]
    messages = [dict(turn) for _ in range(100) for turn in turns]
    assert len(ChatTemplate(source, {}).render(messages).spans) == 200
    assert len(renderings) < 25
