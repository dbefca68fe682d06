"""Conversations whose tool calls or reasoning a template leaves out."""

from typing import Any

import pytest

from data.tokenization.reasoning_templates import CALLS_WITHOUT_CONTENT, DROPS_EARLIER_REASONING
from helpers import refused
from hydraulis.data.tokenization.chat_template import CHATML, ChatTemplate

CALLS = [{"type": "function", "function": {"name": "weather", "arguments": "{}"}}]


def talk(content: str | None, **others: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "?"}, {"role": "assistant", "content": content, **others}]


def text(source: str, messages: list[dict[str, Any]]) -> str:
    return ChatTemplate(source, {}).render(messages).text


@pytest.mark.parametrize("source", [CHATML, CALLS_WITHOUT_CONTENT])
def test_tool_calls_that_the_template_leaves_out_are_refused(source: str) -> None:
    with refused("chat_template_invalid", "message 1,", "tool_calls", "data.chat_template"):
        text(source, talk("", tool_calls=CALLS))


def test_a_function_call_that_the_template_leaves_out_is_refused() -> None:
    call = {"name": "weather", "arguments": "{}"}
    with refused("chat_template_invalid", "message 1,", "function_call"):
        text(CHATML, talk("", function_call=call))
    writing = CHATML.replace("message.content", "(message.content or message.function_call | string)")
    assert "weather" in text(writing, talk("", function_call=call))


def test_tools_that_the_template_leaves_out_are_refused() -> None:
    tools = [{"function": {"name": "weather"}}]
    with refused("chat_template_invalid", "tools", "data.chat_template", "data.sources.fields"):
        ChatTemplate(CHATML, {}).render(talk("x"), tools)
    assert ChatTemplate(CHATML, {}).render(talk("x"), [])
    assert "weather" in ChatTemplate("{{ tools | tojson }}" + CHATML, {}).render(talk("x"), tools).text


def test_tool_calls_that_the_template_writes_are_accepted() -> None:
    writing = CHATML.replace("message.content", "(message.content or message.tool_calls | string)")
    assert "weather" in text(writing, talk("", tool_calls=CALLS))
    assert text(CALLS_WITHOUT_CONTENT, talk(None, tool_calls=CALLS)).endswith("<call>weather")
    # An empty list has no calls.
    assert text(CHATML, talk("", tool_calls=[]))


def test_reasoning_that_the_template_leaves_out_of_the_last_message_is_refused() -> None:
    for content in ("<think>\nEasy.\n</think>\n\nFour.", "Easy.</think>Four."):
        with refused("chat_template_invalid", "message 1,", "</think>"):
            text(CALLS_WITHOUT_CONTENT, talk(content))
        assert "Easy." in text(DROPS_EARLIER_REASONING, talk(content))
    with refused("chat_template_invalid", "message 1,", "reasoning_content"):
        text(CHATML, talk("Four.", reasoning_content="Easy."))


def test_a_template_that_leaves_out_earlier_reasoning_is_known() -> None:
    sources = (DROPS_EARLIER_REASONING, CALLS_WITHOUT_CONTENT, CHATML, "{{ raise_exception('no') }}")
    assert [ChatTemplate(source, {}).leaves_out_earlier_reasoning for source in sources] == [
        True,
        False,
        False,
        False,
    ]


def test_empty_and_earlier_reasoning_may_be_left_out() -> None:
    assert text(CALLS_WITHOUT_CONTENT, talk("<think>\n\n</think>\n\nFour.")).endswith("Four.<end>")
    earlier = [*talk("<think>Easy.</think>Four."), *talk("Seven.")]
    assert "Easy." not in text(CALLS_WITHOUT_CONTENT, earlier)
    assert "Easy." not in text(DROPS_EARLIER_REASONING, earlier)
