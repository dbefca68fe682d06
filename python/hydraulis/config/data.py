"""The section `data`: where sequences come from, and how they make global batches."""

import dataclasses
from typing import Literal, TypeAlias

from hydraulis.config.check import check_above, check_at_least, check_not_empty, check_within
from hydraulis.errors import InvalidInputError

RecordFormat: TypeAlias = Literal["text", "chat", "completion", "tokens"]
TooLong: TypeAlias = Literal["split", "truncate", "refuse"]
Broken: TypeAlias = Literal["refuse", "skip"]

# How many fields each format takes, at least and at most, and which by default.
_FIELDS: dict[RecordFormat, tuple[int, int, tuple[str, ...]]] = {
    "text": (1, 1, ("text",)),
    "chat": (1, 2, ("messages",)),
    "completion": (2, 2, ("prompt", "completion")),
    "tokens": (1, 2, ("input_ids",)),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """Files of one kind, as one part of the mixture.

    Attributes:
        files: paths and globs, of `.jsonl`, `.parquet`, `.arrow`, `.npy` and Megatron's `.bin` or `.idx`, or
            folders that Hugging Face's datasets saved.
        format: what a record is. `text` is a document; `chat` a list of messages, of which the assistant's
            count in the loss; `completion` a prompt and what follows it, which alone counts; `tokens` is
            tokenised already.
        fields: where in a record that stands, by default `text`; `messages`, and if wanted that of the tools;
            `prompt` and `completion`; `input_ids`, and if wanted that of the labels, where -100 does not
            count. Files without records (`.npy`, `.bin`) have none.
        weight: the share of the tokens that come from here, relative to those of the other sources; absent
            from all of them, each document comes once per epoch.
    """

    files: tuple[str, ...]
    format: RecordFormat = "text"
    fields: tuple[str, ...] = ()
    weight: float | None = None

    def __post_init__(self) -> None:
        *_, default = _FIELDS[self.format]
        object.__setattr__(self, "fields", self.fields or default)

    def check(self, place: str) -> None:
        """Refuse values that are out of range; by the owner, who knows which of the sources it is.

        Args:
            place: of the source in the configuration.

        Raises:
            InvalidInputError: a value is refused (code `config_value`).
        """
        check_not_empty(f"{place}.files", self.files)
        for index, name in enumerate(self.files):
            check_not_empty(f"{place}.files[{index}]", name)
        least, most, default = _FIELDS[self.format]
        if not least <= len(self.fields) <= most or not all(self.fields):
            message = (
                f"{place}.fields = {list(self.fields)} must be {least} to {most} names for the format "
                f"'{self.format}', by default {list(default)}; change it in the file or by an override"
            )
            raise InvalidInputError(message, code="config_value")
        if self.weight is not None:
            check_above(f"{place}.weight", self.weight, 0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Where the sequences come from, and how many of them make a global batch.

    Attributes:
        source: what is there without any file, and taken where `sources` is empty: `stdlib` is the functions
            and methods of the interpreter's standard library, byte by byte.
        sources: the files to train on.
        tokenizer: `bytes`, a `tokenizer.json`, or a folder that holds one.
        chat_template: a file with a Jinja template, or `chatml`; empty for the tokenizer's own.
        eos_token: ends each document and each completion; empty for the tokenizer's own, if it has one.
        max_tokens: the longest sequence.
        too_long: what becomes of a longer document: it is `split` into sequences, `truncate` drops its end,
            and `refuse` refuses the data. All are counted.
        broken: what becomes of records that cannot be read, no JSON or without their field: they `refuse` the
            data, the first of them named, or `skip` leaves them out, counted and the first of them named.
        tokens_per_batch: a global batch takes whole sequences until it holds this many tokens.
        sequences_per_batch: or until it holds this many sequences; exactly one of the two is given.
        epoch_end: what becomes of the last sequences of an epoch if they do not fill a batch: `continue`
            fills it from the next epoch, `drop` leaves them out, counted.
        held_out: the share of each source's documents that is kept for evaluation.
        held_out_seed: chooses them.
        index_directory: where tokens and lengths are kept; the same on every node.
        index_processes: that tokenise; 0 for one on each core.
    """

    source: Literal["stdlib"] = "stdlib"
    sources: tuple[SourceConfig, ...] = ()
    tokenizer: str = "bytes"
    chat_template: str = ""
    eos_token: str = ""
    max_tokens: int = 8192
    too_long: TooLong = "split"
    broken: Broken = "refuse"
    tokens_per_batch: int | None = None
    sequences_per_batch: int | None = None
    epoch_end: Literal["continue", "drop"] = "continue"
    held_out: float = 0.0
    held_out_seed: int = 0
    index_directory: str = ".hydraulis/index"
    index_processes: int = 0

    def __post_init__(self) -> None:
        for index, source in enumerate(self.sources):
            source.check(f"data.sources[{index}]")
        check_not_empty("data.tokenizer", self.tokenizer)
        # The last token of a document predicts nothing, so a single one would train nothing.
        check_at_least("data.max_tokens", self.max_tokens, 2)
        self._check_batch()
        check_within("data.held_out", self.held_out, 0, 1)
        check_at_least("data.held_out_seed", self.held_out_seed, 0)
        check_not_empty("data.index_directory", self.index_directory)
        check_at_least("data.index_processes", self.index_processes, 0)
        weighted = [source.weight is not None for source in self.sources]
        if any(weighted) and not all(weighted):
            message = (
                f"data.sources[{weighted.index(False)}].weight is absent and others have one: give all "
                "sources a weight, or none"
            )
            raise InvalidInputError(message, code="config_value")

    def _check_batch(self) -> None:
        if (self.tokens_per_batch is None) == (self.sequences_per_batch is None):
            given = f"{self.tokens_per_batch} and {self.sequences_per_batch}"
            are = "both absent" if self.tokens_per_batch is None else given
            message = (
                f"data.tokens_per_batch and data.sequences_per_batch are {are}: exactly one of them sets "
                "the size of a batch; set one"
            )
            raise InvalidInputError(message, code="config_value")
        for name in ("tokens_per_batch", "sequences_per_batch"):
            value: int | None = getattr(self, name)
            if value is not None:
                check_at_least(f"data.{name}", value, 1)

    @property
    def reads_bytes(self) -> bool:
        """Whether text becomes bytes, and not a tokenizer's tokens; not where all sources hold tokens."""
        holds_text = not self.sources or any(source.format != "tokens" for source in self.sources)
        return self.tokenizer == "bytes" and holds_text

    @property
    def budget_key(self) -> str:
        """The key that says when a batch is full."""
        return "sequences_per_batch" if self.tokens_per_batch is None else "tokens_per_batch"

    @property
    def batch_tokens(self) -> int:
        """About as many tokens as a batch may hold: its budget, or that many of the longest sequences."""
        if self.tokens_per_batch is not None:
            return self.tokens_per_batch
        assert self.sequences_per_batch is not None  # checked above
        return self.sequences_per_batch * self.max_tokens
