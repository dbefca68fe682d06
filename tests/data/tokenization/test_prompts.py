"""Prompts of samples: their tokens, their refusals, and the text of a continuation."""

from pathlib import Path

from config.run_file import write
from data.small_tokenizer import write_tokenizer
from helpers import refused
from hydraulis.config.run import RunConfig, load
from hydraulis.data.tokenization.prompts import Prompts, decode_continuation, encode_prompts, longest_prompt
from hydraulis.data.tokenization.tokenizer import load_tokenizer

SAMPLES = ["samples.every=1", "samples.prompts=['the fox', 'ab']"]


def configured(folder: Path, *overrides: str) -> RunConfig:
    return load(write(folder), [*SAMPLES, *overrides])


def source(kind: str, key: str = "sources") -> str:
    return f'data.{key}=[{{files = ["a.jsonl"], format = "{kind}"}}]'


def test_prompts_are_tokenized_like_texts_without_the_final_token(tmp_path: Path) -> None:
    assert encode_prompts(configured(tmp_path)) == Prompts([list(b"the fox"), list(b"ab")], None)
    folder = write_tokenizer(tmp_path / "tokenizer", bos=True, eos_token="</s>")
    config = configured(tmp_path, f'data.tokenizer="{folder}"', source("text"), "model.vocab_size=400")
    tokenizer = load_tokenizer(str(folder))
    prompts = encode_prompts(config)
    assert prompts.eos == tokenizer.token("</s>")
    assert prompts.tokens[0] == tokenizer.encode("the fox", special=True).tolist()
    assert prompts.tokens[0][0] == tokenizer.token("<s>")
    assert Prompts.from_json(prompts.to_json()) == prompts
    # The prompt of a chat has been rendered, with its special tokens.
    chat = configured(tmp_path, f'data.tokenizer="{folder}"', source("chat"), "model.vocab_size=400")
    assert encode_prompts(chat).tokens[0] == prompts.tokens[0][1:]


def test_prompts_that_no_sequence_can_have_are_refused(tmp_path: Path) -> None:
    with refused("config_value", "samples.prompts[0]", "7 tokens", 71, "samples.tokens = 64"):
        encode_prompts(configured(tmp_path, "data.max_tokens=70"))
    with refused("config_value", "data.tokenizer"):
        encode_prompts(configured(tmp_path, source("tokens")))
    # The text to evaluate on is read as bytes too.
    evaluated = configured(tmp_path, source("tokens"), source("text", "validation"))
    assert encode_prompts(evaluated).tokens[1] == list(b"ab")
    folder = write_tokenizer(tmp_path / "tokenizer")
    with refused("token_out_of_range", "samples.prompts[0]"):
        encode_prompts(configured(tmp_path, f'data.tokenizer="{folder}"', source("text")))


def test_the_longest_prompt_counts_with_its_continuation(tmp_path: Path) -> None:
    assert longest_prompt(configured(tmp_path)) == 7 + 64
    assert longest_prompt(configured(tmp_path, "samples.every=0", source("tokens"))) == 0
    with refused("config_value", "data.tokenizer"):
        longest_prompt(configured(tmp_path, source("tokens")))


def test_a_continuation_has_the_text_behind_its_prompt(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(write_tokenizer(tmp_path)))
    first, second = (tokenizer.encode(text, special=False).tolist() for text in ("the fox", " jumps over"))
    assert decode_continuation(tokenizer, first, second) == " jumps over"
    cup = "🚰".encode()
    bytewise = load_tokenizer("bytes")
    # The prompt ends inside a character.
    assert decode_continuation(bytewise, list(cup[:2]), [*cup[2:], 33]).endswith("!")
    assert decode_continuation(bytewise, [97], [300, 98]) == "\ufffdb"
