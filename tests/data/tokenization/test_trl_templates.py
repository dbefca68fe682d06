"""The chat templates in TRL's package, each with its variant that marks the assistant's text.

`make` installs TRL without its dependencies, because the test only reads its files. A variant may mark a part
of the prompt too, such as the assistant's tag; the prompt is not the assistant's text here.
"""

from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest

from hydraulis.data.tokenization.chat_template import ChatTemplate, Conversation, RenderedChat
from hydraulis.errors import InvalidInputError

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
CALLS = [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Ulm"}}}]
CALL: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "", "tool_calls": CALLS},
]
ANSWER = [{"role": "tool", "content": "Sun."}, {"role": "assistant", "content": "It is sunny."}]
FIRST = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "Four."}]
SECOND = [{"role": "user", "content": "And <3?"}, {"role": "assistant", "content": "< Seven <"}]
THINKING = {"role": "assistant", "content": "<think>\nEasy.\n</think>\n\nFour."}
TALKS: dict[str, Sequence[dict[str, Any]]] = {
    "one turn": FIRST,
    "two turns": [*FIRST, *SECOND],
    "system": [{"role": "system", "content": "Be terse."}, *FIRST, *SECOND],
    "reasoning": [FIRST[0], THINKING],
    "earlier reasoning": [FIRST[0], THINKING, SECOND[0], THINKING],
    "tool call": [*CALL, *ANSWER],
    "earlier tool call": [*CALL, *ANSWER, *SECOND],
}


def templates() -> Path | None:
    try:
        folder = Path(str(distribution("trl").locate_file("trl/chat_templates")))
    except PackageNotFoundError:
        return None
    return folder if folder.is_dir() else None


FOLDER = templates()
PAIRS = [] if FOLDER is None else sorted(FOLDER.glob("*_training.jinja"))
pytestmark = pytest.mark.skipif(not PAIRS, reason="TRL is not installed; pip install --no-deps trl")


@cache
def template(file: Path) -> ChatTemplate:
    return ChatTemplate(file.read_text(encoding="utf-8"), SPECIAL)


def rendered(file: Path, talk: Sequence[dict[str, Any]]) -> RenderedChat | None:
    try:
        return template(file).render(talk)
    except InvalidInputError:
        return None


def prompt(file: Path) -> str:
    return Conversation(template(file), None).text(FIRST[:1], add_generation_prompt=True)


def inside(chat: RenderedChat) -> list[bool]:
    return [any(start <= place < stop for start, stop in chat.spans) for place in range(len(chat.text))]


def compare(plain: Path, training: Path, talk: Sequence[dict[str, Any]]) -> bool:
    """Check that both mark the same text; return whether both render the same text."""
    expected, found = rendered(training, talk), rendered(plain, talk)
    if expected is None or found is None or found.text != expected.text:
        return False
    wanted, marked = inside(expected), inside(found)
    assert all(want for want, mark in zip(wanted, marked, strict=True) if mark)
    for start, _ in found.spans:
        first = start
        while first and wanted[first - 1] and not marked[first - 1]:
            first -= 1
            wanted[first] = False
        assert found.text[first:start] in prompt(plain)
    assert wanted == marked
    return True


def both(training: Path) -> tuple[Path, Path]:
    return training.with_name(training.name.replace("_training", "")), training


@pytest.mark.parametrize("training", PAIRS, ids=lambda path: path.stem)
def test_the_same_text_counts_as_under_the_training_variant(training: Path) -> None:
    # A diffusion model is not trained on the next token, and its template has the tools' answers in a turn.
    talks = [talk for name, talk in TALKS.items() if "tool" not in name or "diffusion" not in training.stem]
    for talk in talks:
        compare(*both(training), talk)


@pytest.mark.parametrize(
    ("name", "other_text"),
    [
        ("llama3", {"tool call", "earlier tool call"}),
        ("qwen2_5", set()),
        # These drop earlier reasoning.
        ("qwen3", {"two turns", "system", "earlier reasoning", "tool call", "earlier tool call"}),
        ("qwen3_instruct_2507", set()),
        ("phi3_5", {"tool call", "earlier tool call"}),
    ],
)
def test_most_conversations_have_the_same_text(name: str, other_text: set[str]) -> None:
    """The test above compares something."""
    assert FOLDER is not None
    pair = both(FOLDER / f"{name}_training.jinja")
    assert {talk for talk in TALKS if not compare(*pair, TALKS[talk])} == other_text


@pytest.mark.parametrize(
    "name", ["qwen3", "qwen3_5_think", "qwen3_6", "qwen3_8", "glm4moe", "nemotron_3_nano"]
)
def test_templates_of_reasoning_models_take_conversations_with_reasoning_and_tool_calls(name: str) -> None:
    assert FOLDER is not None
    for talk in TALKS.values():
        chat = rendered(FOLDER / f"{name}.jinja", talk)
        assert chat is not None
        last = chat.text[slice(*chat.spans[-1])]
        assert str(talk[-1]["content"]).rpartition("</think>")[2].strip() in last
        assert len(chat.spans) == sum(message["role"] == "assistant" for message in talk)


def test_a_template_without_an_end_of_turn_trains_none() -> None:
    assert FOLDER is not None
    chat = rendered(FOLDER / "glm4moe.jinja", TALKS["two turns"])
    assert chat is not None
    turns = [chat.text[slice(*span)] for span in chat.spans]
    assert turns[0] == "\n<think></think>\nFour."
    assert chat.text.partition("Four.")[2].startswith("<|user|>")
