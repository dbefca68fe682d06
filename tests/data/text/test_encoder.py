from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from data.small_tokenizer import write_tokenizer
from hydraulis.data.text.chat_template import CHATML, ChatTemplate
from hydraulis.data.text.encoder import (
    ChatEncoder,
    CompletionEncoder,
    Encoder,
    TextEncoder,
    TokensEncoder,
)
from hydraulis.data.text.tokenizer import ByteTokenizer, load_tokenizer
from hydraulis.data.tokens import MaskedTokens, SequenceTokens, plain_tokens
from hydraulis.errors import InvalidInputError

BYTES = ByteTokenizer()
TALK = [{"role": "user", "content": "naïve?"}, {"role": "assistant", "content": "the 水"}]


def text_of(sequence: SequenceTokens) -> bytes:
    return plain_tokens(sequence).astype(np.uint8).tobytes()


def counted(sequence: SequenceTokens) -> bytes:
    assert isinstance(sequence, MaskedTokens)
    return sequence.tokens[sequence.counts].astype(np.uint8).tobytes()


def test_a_document_is_ended_once(tmp_path: Path) -> None:
    assert text_of(TextEncoder(BYTES, None).encode(["abc"])) == b"abc"
    assert text_of(TextEncoder(BYTES, 10).encode(["abc"])) == b"abc\n"
    assert text_of(TextEncoder(BYTES, 10).encode(["abc\n"])) == b"abc\n"
    assert text_of(TextEncoder(BYTES, 10).encode([""])) == b""
    tokenizer = load_tokenizer(str(write_tokenizer(tmp_path, bos=True)))
    first, *_, last = plain_tokens(TextEncoder(tokenizer, tokenizer.token("</s>")).encode(["the fox"]))
    assert (first, last) == (tokenizer.token("<s>"), tokenizer.token("</s>"))


def test_of_a_completion_what_follows_the_prompt_counts() -> None:
    found = CompletionEncoder(BYTES, 0).encode(["2 + 2 =", " 4"])
    assert text_of(found) == b"2 + 2 = 4\0"
    assert counted(found) == b" 4\0"
    # An end that the tokenizer itself puts behind every text does not stand in the middle.
    assert text_of(CompletionEncoder(BYTES, 10).encode(["a\n", "b"])) == b"ab\n"


def test_of_a_conversation_what_the_assistant_wrote_counts(tmp_path: Path) -> None:
    found = ChatEncoder(BYTES, ChatTemplate(CHATML, {})).encode([TALK])
    assert counted(found).decode() == "the 水<|im_end|>\n"
    tokenizer = load_tokenizer(str(write_tokenizer(tmp_path)))
    found = ChatEncoder(tokenizer, ChatTemplate(CHATML, {})).encode([TALK])
    assert isinstance(found, MaskedTokens)
    first = int(np.flatnonzero(found.counts)[0])
    assert found.counts[first:].all()
    expected = tokenizer.encode("the 水<|im_end|>\n", special=False)
    assert found.tokens[first:].tolist() == expected.tolist()


def test_messages_from_columns_lose_the_keys_that_are_null() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.keys() | list }}{% endfor %}", {})
    message = {"role": "user", "content": None, "tool_calls": None}
    assert text_of(ChatEncoder(BYTES, template).encode([[message]])) == b"['role', 'content']"


def test_labels_say_which_tokens_count() -> None:
    assert plain_tokens(TokensEncoder(masked=False).encode([[3, 70_000]])).tolist() == [3, 70_000]
    found = TokensEncoder(masked=True).encode([[5, 6, 7], np.array([-100, 6, -100])])
    assert counted(found) == b"\x06"
    assert len(TokensEncoder(masked=False).encode([[]])) == 0


@pytest.mark.parametrize(
    ("encoder", "values", "says"),
    [
        (TextEncoder(BYTES, None), [3], "holds 3 where a string"),
        (CompletionEncoder(BYTES, None), ["a", None], "holds None where a string"),
        (ChatEncoder(BYTES, ChatTemplate(CHATML, {})), ["a"], "holds 'a' where a list of messages"),
        (ChatEncoder(BYTES, ChatTemplate(CHATML, {})), [[]], "where a list of messages"),
        (ChatEncoder(BYTES, ChatTemplate(CHATML, {})), [[{"from": "x"}]], "where a message such as"),
        (ChatEncoder(BYTES, ChatTemplate(CHATML, {})), [TALK, "tool"], "where a list of tools"),
        (TokensEncoder(masked=False), ["abc"], "a list of integers, one for each token"),
        (TokensEncoder(masked=False), [[1.5]], "a list of integers"),
        (TokensEncoder(masked=False), [[1, -1]], "holds the token -1: the limits are 0 and 2147483647"),
        (TokensEncoder(masked=False), [[1 << 31]], "holds the token 2147483648"),
        (TokensEncoder(masked=True), [[1], [1, 2]], "has 2 labels for 1 tokens"),
        (TextEncoder(BYTES, None), [list(range(99))], r"\.\.\. where a string"),
    ],
)
def test_a_value_that_is_not_what_it_must_be_is_refused(
    encoder: Encoder, values: Sequence[object], says: str
) -> None:
    with pytest.raises(InvalidInputError, match=says) as refusal:
        encoder.encode(values)
    assert refusal.value.code == "record_value"
