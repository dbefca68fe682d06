"""The prompts of a run's samples as tokens, and their continuations as text."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Self

from hydraulis.config.data import CHAT_FORMATS
from hydraulis.config.run import RunConfig
from hydraulis.data.tokenization.tokenizer import BYTES, Tokenizer, load_tokenizer
from hydraulis.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts of a run's samples.

    Attributes:
        tokens: Tokens of each prompt, at least one.
        eos: Token at the end of a document, which ends a continuation; None for none.
    """

    tokens: Sequence[Sequence[int]]
    eos: int | None

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the text of `to_json`."""
        return cls(**json.loads(text))

    def to_json(self) -> str:
        """Return the prompts as JSON."""
        return json.dumps(asdict(self))


def encode_prompts(config: RunConfig) -> Prompts:
    """Tokenize the prompts like the texts of the run, and check that each fits a sequence with its tokens.

    A prompt for a chat model is the rendered conversation, which has its special tokens already.

    Args:
        config: Configuration of a run with samples.

    Raises:
        InvalidInputError: The run has no tokenizer of text, a prompt gives no token, or prompt and
            continuation are longer than `data.max_tokens` (code `config_value`), the tokenizer is refused
            (see `load_tokenizer`), or a token is outside the model's vocabulary (`token_out_of_range`).
    """
    tokenizer = _tokenizer(config)
    text = config.data.eos_token or tokenizer.special.eos
    eos = tokenizer.token(text) if text else None
    is_rendered = any(source.format in CHAT_FORMATS for source in config.data.sources)
    tokens = []
    for index, prompt in enumerate(config.samples.prompts):
        encoded = list(map(int, tokenizer.encode(prompt, special=not is_rendered)))
        # A tokenizer may add the final token to every text, but a prompt does not end the document.
        encoded = encoded[:-1] if encoded and encoded[-1] == eos else encoded
        _check_prompt(config, f"samples.prompts[{index}]", encoded)
        tokens.append(encoded)
    return Prompts(tokens, eos)


def longest_prompt(config: RunConfig) -> int:
    """Return the tokens of the longest prompt with its continuation; 0 for a run without samples.

    Raises:
        InvalidInputError: A prompt is refused (see `encode_prompts`).
    """
    if config.samples.every is None:
        return 0
    return max(map(len, encode_prompts(config).tokens)) + config.samples.tokens


def decode_continuation(tokenizer: Tokenizer, prompt: Sequence[int], continuation: Sequence[int]) -> str:
    """Return the text of a continuation.

    A tokenizer may leave out a space at the start of a text, so the prompt is decoded with it.
    """
    before, whole = tokenizer.decode(prompt), tokenizer.decode([*prompt, *continuation])
    return whole.removeprefix(before) if whole.startswith(before) else tokenizer.decode(continuation)


def _tokenizer(config: RunConfig) -> Tokenizer:
    if not config.data.holds_text and config.data.tokenizer == BYTES:
        message = (
            f"samples.every = {config.samples.every} needs the tokenizer of the tokens, and data.tokenizer = "
            f"'{BYTES}' while all sources hold tokens: set it to the tokenizer that made them"
        )
        raise InvalidInputError(message, code="config_value")
    return load_tokenizer(config.data.tokenizer)


def _check_prompt(config: RunConfig, place: str, tokens: Sequence[int]) -> None:
    if not tokens:
        message = f"{place} gives no token; write a text, or leave it out"
        raise InvalidInputError(message, code="config_value")
    if max(tokens) >= config.model.vocab_size:
        message = (
            f"{place} has token {max(tokens)}, and the model's largest one is {config.model.vocab_size - 1}: "
            "use the tokenizer of the model"
        )
        raise InvalidInputError(message, code="token_out_of_range")
    length, most = len(tokens) + config.samples.tokens, config.data.max_tokens
    if length > most:
        message = (
            f"{place} has {len(tokens)} tokens, {length} with samples.tokens = {config.samples.tokens}, and "
            f"data.max_tokens = {most}: shorten the prompt, or lower samples.tokens"
        )
        raise InvalidInputError(message, code="config_value")
