import json
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from data.small_tokenizer import write_tokenizer
from helpers import refused
from hydraulis.data.tokenization.chat_template import CHATML, ChatTemplate
from hydraulis.data.tokenization.encoder import (
    AlpacaEncoder,
    ChatEncoder,
    CompletionEncoder,
    Encoder,
    TextEncoder,
    TokensEncoder,
)
from hydraulis.data.tokenization.tokenizer import ByteTokenizer, load_tokenizer
from hydraulis.data.tokens import MaskedTokens, SequenceTokens, plain_tokens

BYTES = ByteTokenizer()
TEXT = TextEncoder(BYTES, None, ["text"])
PAIRS = CompletionEncoder(BYTES, None, ["prompt", "completion"])
CHAT = ChatEncoder(BYTES, ChatTemplate(CHATML, {}), ["messages", "tools"])
ALPACA = AlpacaEncoder(BYTES, ChatTemplate(CHATML, {}), ["instruction", "input", "output"])
IDS = TokensEncoder(["input_ids"])
LABELS = TokensEncoder(["input_ids", "labels"])
MASK = TokensEncoder(["input_ids", "loss_mask"])
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content }}<|im_end|>\n{% endgeneration %}{% else %}{{ m.content }}<|im_end|>\n{% endif %}"
    "{% endfor %}"
)
TALK = [{"role": "user", "content": "naïve?"}, {"role": "assistant", "content": "the 水"}]


def text_of(sequence: SequenceTokens) -> bytes:
    return plain_tokens(sequence).astype(np.uint8).tobytes()


def counted(sequence: SequenceTokens) -> bytes:
    assert isinstance(sequence, MaskedTokens)
    return sequence.tokens[sequence.loss_mask].astype(np.uint8).tobytes()


def test_a_document_has_one_end_token(tmp_path: Path) -> None:
    assert text_of(TEXT.encode(["abc"])) == b"abc"
    assert text_of(TextEncoder(BYTES, 10, ["text"]).encode(["abc"])) == b"abc\n"
    assert text_of(TextEncoder(BYTES, 10, ["text"]).encode(["abc\n"])) == b"abc\n"
    assert text_of(TextEncoder(BYTES, 10, ["text"]).encode([""])) == b""
    tokenizer = load_tokenizer(str(write_tokenizer(tmp_path, bos=True)))
    ending = TextEncoder(tokenizer, tokenizer.token("</s>"), ["text"])
    assert len(ending.encode([""])) == len(TextEncoder(tokenizer, None, ["text"]).encode([""])) == 0
    first, *_, last = plain_tokens(ending.encode(["the fox"]))
    assert (first, last) == (tokenizer.token("<s>"), tokenizer.token("</s>"))


def test_a_conversation_of_sharegpt_has_the_corresponding_roles() -> None:
    speakers = ["system", "human", "gpt", "human", "observation", "chatgpt"]
    roles = ["system", "user", "assistant", "user", "tool", "assistant"]
    shared = [{"from": speaker, "value": speaker[0]} for speaker in speakers]
    plain = [{"role": role, "content": speaker[0]} for role, speaker in zip(roles, speakers, strict=True)]
    assert text_of(CHAT.encode([shared])) == text_of(CHAT.encode([plain]))
    assert counted(CHAT.encode([shared])) == b"g<|im_end|>\nc<|im_end|>\n"


@pytest.mark.parametrize("source", [CHATML, MARKED])
def test_a_message_of_weight_0_is_no_target(source: str) -> None:
    chat = ChatEncoder(BYTES, ChatTemplate(source, {}), ["messages"])
    for key, text, speakers in [
        ("role", "content", ["user", "assistant"]),
        ("from", "value", ["human", "gpt"]),
    ]:
        talk = [
            {key: speakers[number % 2], text: str(number)} | ({} if weight is None else {"weight": weight})
            for number, weight in enumerate([None, 0, 0, 1, 1, None])
        ]
        assert counted(chat.encode([talk])) == b"3<|im_end|>\n5<|im_end|>\n"
        # The template does not see the weights.
        assert b"weight" not in text_of(chat.encode([talk]))
        talk[3]["weight"] = talk[5]["weight"] = 0
        assert counted(chat.encode([talk])) == b""


def test_a_weight_without_a_marked_part_of_its_own_is_refused() -> None:
    source = "{% generation %}{% for m in messages %}{{ m.content }}{% endfor %}{% endgeneration %}"
    talk = [*TALK, {"role": "assistant", "content": "x", "weight": 0}]
    with refused("chat_template_invalid", "message 2", "weight", "1 part for 2"):
        ChatEncoder(BYTES, ChatTemplate(source, {}), ["messages"]).encode([talk])


def test_the_fields_of_alpaca_form_one_turn() -> None:
    turn = [{"role": "user", "content": "Add.\n\n2 and 2"}, {"role": "assistant", "content": "4"}]
    found = ALPACA.encode(["Add.", "2 and 2", "4"])
    assert text_of(found) == text_of(CHAT.encode([turn]))
    assert counted(found) == b"4<|im_end|>\n"
    turn[0]["content"] = "Add."
    for nothing in ("", None):
        assert text_of(ALPACA.encode(["Add.", nothing, "4"])) == text_of(CHAT.encode([turn]))
    two = AlpacaEncoder(BYTES, ChatTemplate(CHATML, {}), ["question", "answer"])
    assert text_of(two.encode(["Add.", "4"])) == text_of(CHAT.encode([turn]))


def test_the_tokens_after_the_prompt_of_a_completion_are_targets() -> None:
    found = CompletionEncoder(BYTES, 0, ["prompt", "completion"]).encode(["2 + 2 =", " 4"])
    assert text_of(found) == b"2 + 2 = 4\0"
    assert counted(found) == b" 4\0"
    # The final token that a tokenizer adds to every text is not in the middle.
    assert text_of(CompletionEncoder(BYTES, 10, ["prompt", "completion"]).encode(["a\n", "b"])) == b"ab\n"


def test_the_assistants_tokens_of_a_conversation_are_targets(tmp_path: Path) -> None:
    found = CHAT.encode([TALK])
    assert counted(found).decode() == "the 水<|im_end|>\n"
    tokenizer = load_tokenizer(str(write_tokenizer(tmp_path)))
    found = ChatEncoder(tokenizer, ChatTemplate(CHATML, {}), ["messages", "tools"]).encode([TALK])
    assert isinstance(found, MaskedTokens)
    first = int(np.flatnonzero(found.loss_mask)[0])
    assert found.loss_mask[first:].all()
    expected = tokenizer.encode("the 水<|im_end|>\n", special=False)
    assert found.tokens[first:].tolist() == expected.tolist()


def test_messages_from_columns_lose_the_keys_that_are_null() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.keys() | list }}{% endfor %}", {})
    message = {"role": "user", "content": None, "tool_calls": None}
    assert text_of(ChatEncoder(BYTES, template, ["messages"]).encode([[message]])) == b"['role', 'content']"


def test_labels_select_the_targets() -> None:
    assert plain_tokens(IDS.encode([[3, 70_000]])).tolist() == [3, 70_000]
    found = LABELS.encode([[5, 6, 7], np.array([-100, 6, -100])])
    assert counted(found) == b"\x06"
    assert len(IDS.encode([[]])) == 0


@pytest.mark.parametrize("field", ["assistant_masks", "completion_mask", "loss_mask"])
@pytest.mark.parametrize("mask", [[0, 0, 1, 1], [False, False, True, True], np.array([0, 0, 1, 1])])
def test_a_mask_selects_the_targets(field: str, mask: object) -> None:
    assert counted(TokensEncoder(["input_ids", field]).encode([[5, 6, 0, 1], mask])) == b"\x00\x01"
    assert len(TokensEncoder(["input_ids", field]).encode([[], []])) == 0


@pytest.mark.parametrize("labels", [[0, 0, 1, 1], [6, 7, 8, -100]])
def test_a_label_of_another_token_is_refused(labels: list[int]) -> None:
    """Neither a mask nor labels of the next tokens are taken for labels."""
    with refused("record_malformed", "place 0", "token is 5", "shift", "assistant_masks"):
        LABELS.encode([[5, 6, 7, 8], labels])


@pytest.mark.parametrize(
    ("encoder", "values", "field", "part"),
    [
        (TEXT, [3], "text", " 3 "),
        (PAIRS, ["a", None], "completion", "null"),
        (CHAT, ["a"], "messages", '"a"'),
        (CHAT, [[]], "messages", "0 messages"),
        (CHAT, [{"a": True}], "messages", '{"a": true}'),
        (CHAT, [[*TALK[:1], {"from": "x"}]], "messages[1]", '{"from": "x"}'),
        (CHAT, [[{"role": "assistant", "content": "x", "weight": 0.5}]], "messages[0].weight", "0.5"),
        (CHAT, [[{"from": "gpt", "value": "x", "weight": "0"}]], "messages[0].weight", '"0"'),
        (CHAT, [[{"from": "human", "value": ["x"]}]], "messages[0].value", '["x"]'),
        (CHAT, [[{"from": "alien", "value": "x"}]], "messages[0]", "alien"),
        (ALPACA, ["a", ["b"], "c"], "input", '["b"]'),
        (ALPACA, [["a", "b"], "", "c"], "instruction", '["a", "b"]'),
        (ALPACA, ["a", "", None], "output", "null"),
        (TEXT, [b"abc"], "text", "bytes"),
        (CHAT, [TALK, "tool"], "tools", '"tool"'),
        (IDS, ["abc"], "input_ids", '"abc"'),
        (IDS, [[1.5]], "input_ids", "integers"),
        (TEXT, [np.array([1, 2])], "text", "[1, 2]"),
        (TEXT, [[b"a", date(2026, 1, 2)]], "text", """["bytes b'a'", "date 2026-01-02"]"""),
        # Escaped, so that they cannot affect a terminal.
        (TEXT, [["ö", "\x9b", "\u202e", "\ud800"]], "text", r'["ö", "\u009b", "\u202e", "\ud800"]'),
        (IDS, [[1, -1]], "input_ids", "-1: the limits are 0 and 2147483647"),
        (IDS, [[1 << 31]], "input_ids", "2147483648"),
        (LABELS, [[1], [1, 2]], "labels", "2 labels for 1 token"),
        (MASK, [[1], [1, 0]], "loss_mask", "2 values for 1 token"),
        (MASK, [[1, 5], [-100, 5]], "loss_mask", "mask of 0 and 1"),
        (MASK, [[1], ["1"]], "loss_mask", "integers"),
        (TEXT, [list(range(99))], "text", "... "),
    ],
)
def test_an_invalid_value_is_refused(
    encoder: Encoder, values: Sequence[object], field: str, part: str
) -> None:
    with refused("record_malformed", f"field '{field}'", part):
        encoder.encode(values)


@pytest.mark.parametrize(
    "value",
    [
        [1, [2], 3],
        [[1, 2], [3]],
        [[[1]]],
        [1, "2"],
        [1.5],
        [2**70],
        [None],
        {"a": 1},
        json.loads("[" * 900 + "]" * 900),
    ],
)
def test_tokens_that_are_no_list_of_integers_are_a_broken_record(value: object) -> None:
    encoder = TokensEncoder(["input_ids"])
    with refused("record_malformed", "input_ids"):
        encoder.encode([value])
