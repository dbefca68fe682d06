"""The section `data`: the files, the tokenizer and the global batches."""

import dataclasses
from collections.abc import Sequence
from typing import Literal, TypeAlias

from hydraulis.config.check import check_above, check_at_least, check_not_empty, check_within
from hydraulis.errors import InvalidInputError

RecordFormat: TypeAlias = Literal["text", "chat", "alpaca", "completion", "tokens"]
TooLong: TypeAlias = Literal["split", "truncate", "refuse"]
BrokenRecordsPolicy: TypeAlias = Literal["refuse", "skip"]

# The only data for a run without files.
_STDLIB = "stdlib"
# Formats that a chat template renders.
CHAT_FORMATS: tuple[RecordFormat, ...] = ("chat", "alpaca")

# Minimum number, maximum number and defaults of the fields of each format.
_FIELDS: dict[RecordFormat, tuple[int, int, tuple[str, ...]]] = {
    "text": (1, 1, ("text",)),
    "chat": (1, 2, ("messages",)),
    "alpaca": (2, 3, ("instruction", "input", "output")),
    "completion": (2, 2, ("prompt", "completion")),
    "tokens": (1, 2, ("input_ids",)),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """Files with records of one format: one part of the data mixture.

    Attributes:
        files: Paths and globs of `.jsonl`, `.json`, `.csv` (also with `.gz` or `.zst`), `.parquet`, `.arrow`
            and `.npy` files and Megatron's `.bin` or `.idx`, or folders written by Hugging Face's datasets.
        format: Format of a record. `text` is a document. `chat` is a list of messages; the assistant's are
            targets. `alpaca` is an instruction, an input and an output, rendered as a chat with one turn; the
            output is the target. `completion` is a prompt and a completion; the completion's tokens are
            targets. `tokens` is tokenized data.
        fields: Names of the record's fields, by default `text`; `messages`, and optionally a field of tools;
            `instruction`, `input` (which records may lack) and `output`, or two names without an input;
            `prompt` and `completion`; `input_ids`, and optionally a field of labels, where -100 marks tokens
            outside the loss. Files without records (`.npy`, `.bin`) have no fields.
        weight: Share of the tokens from this source, relative to the weights of the other sources. Without
            weights, each document occurs once per epoch.
    """

    files: tuple[str, ...]
    format: RecordFormat = "text"
    fields: tuple[str, ...] = ()
    weight: float | None = None

    def __post_init__(self) -> None:
        *_, default = _FIELDS[self.format]
        object.__setattr__(self, "fields", self.fields or default)

    @property
    def optional_fields(self) -> tuple[str, ...]:
        """Fields that a record may lack; none if the configuration names the fields."""
        is_default = self.format == "alpaca" and self.fields == _FIELDS["alpaca"][2]
        return ("input",) if is_default else ()

    def check(self, place: str) -> None:
        """Refuse values that are out of range; `DataConfig` calls it with the source's index.

        Args:
            place: Dotted name of the source in the configuration.

        Raises:
            InvalidInputError: A value is refused (code `config_value`).
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
    """The files to train on, their tokenization and the size of a global batch.

    Attributes:
        source: Data for a run without files: `stdlib` is the functions and methods of the Python standard
            library, one token per byte. Used if `sources` is empty.
        sources: Files to train on.
        tokenizer: `bytes`, a `tokenizer.json`, or a folder with one.
        chat_template: Path of a Jinja template, or `chatml`; empty for the tokenizer's own.
        eos_token: Token at the end of each document and completion; empty for the tokenizer's own, if any.
        max_tokens: Maximum number of tokens of a sequence.
        too_long: Treatment of longer documents: `split` cuts them into several sequences, `truncate` drops
            their ends, `refuse` refuses the data. The run reports their number.
        broken_records: Treatment of unreadable records (invalid JSON, a missing field): `refuse` refuses the
            data and names the first of them, `skip` leaves them out, with their number and the first of them
            in the report.
        tokens_per_batch: Token budget of a global batch, which takes whole sequences until it is reached.
        sequences_per_batch: Number of sequences of a global batch. Exactly one of the two budgets is set.
        epoch_end: Treatment of the last sequences of an epoch that do not fill a batch: `continue` fills the
            batch from the next epoch, `drop` leaves them out. The run reports their number.
        validation: Files to evaluate on, with the keys of `sources`.
        held_out: Share of each source's documents that is held out for evaluation, in place of `validation`.
        held_out_seed: Seed of their choice.
        index_directory: Folder of the indexes of tokens and lengths; every node must see the same folder.
        index_processes: Number of tokenizing processes; 0 for one per core.
    """

    source: str = _STDLIB
    sources: tuple[SourceConfig, ...] = ()
    tokenizer: str = "bytes"
    chat_template: str = ""
    eos_token: str = ""
    max_tokens: int = 8192
    too_long: TooLong = "split"
    broken_records: BrokenRecordsPolicy = "refuse"
    tokens_per_batch: int | None = None
    sequences_per_batch: int | None = None
    epoch_end: Literal["continue", "drop"] = "continue"
    validation: tuple[SourceConfig, ...] = ()
    held_out: float = 0.0
    held_out_seed: int = 0
    index_directory: str = ".hydraulis/index"
    index_processes: int = 0

    def __post_init__(self) -> None:
        if self.source != _STDLIB:
            message = (
                f"data.source = {self.source!r} must be '{_STDLIB}', the text of Python's standard library; "
                "name files in data.sources, such as data.sources = [{files = ['my.jsonl']}]"
            )
            raise InvalidInputError(message, code="config_value")
        for place, source in self.placed_sources:
            source.check(place)
        check_not_empty("data.tokenizer", self.tokenizer)
        # A sequence of one token has no target.
        check_at_least("data.max_tokens", self.max_tokens, 2)
        self._check_batch()
        check_within("data.held_out", self.held_out, 0, 1)
        check_at_least("data.held_out_seed", self.held_out_seed, 0)
        check_not_empty("data.index_directory", self.index_directory)
        check_at_least("data.index_processes", self.index_processes, 0)
        _check_weights("data.sources", self.sources)
        _check_weights("data.validation", self.validation)
        self._check_validation()

    def _check_validation(self) -> None:
        if self.validation and not self.sources:
            message = "data.validation names files and data.sources names none: name files to train on"
            raise InvalidInputError(message, code="config_value")
        if self.validation and self.held_out:
            message = (
                f"data.held_out = {self.held_out} and data.validation are both set, and an evaluation uses "
                "one of them: set data.held_out to 0, or leave data.validation out"
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
    def placed_sources(self) -> list[tuple[str, SourceConfig]]:
        """The sources to train on, then those to evaluate on, each with its dotted name."""
        return [
            (f"data.{key}[{index}]", source)
            for key, sources in (("sources", self.sources), ("validation", self.validation))
            for index, source in enumerate(sources)
        ]

    @property
    def evaluates(self) -> bool:
        """Whether there are sequences for evaluation."""
        return bool(self.held_out or self.validation)

    @property
    def holds_text(self) -> bool:
        """Whether a source, to train or to evaluate on, holds text, which the tokenizer reads."""
        formats = [source.format for _, source in self.placed_sources]
        return not formats or any(one != "tokens" for one in formats)

    @property
    def budget_key(self) -> str:
        """The key that sets the budget of a batch."""
        return "sequences_per_batch" if self.tokens_per_batch is None else "tokens_per_batch"

    @property
    def batch_tokens(self) -> int:
        """Approximate maximum of a batch's tokens, from its budget and the maximum length."""
        if self.tokens_per_batch is not None:
            return self.tokens_per_batch
        assert self.sequences_per_batch is not None  # checked above
        return self.sequences_per_batch * self.max_tokens


def _check_weights(key: str, sources: Sequence[SourceConfig]) -> None:
    """Refuse weights of some sources only."""
    weighted = [source.weight is not None for source in sources]
    if any(weighted) and not all(weighted):
        message = (
            f"{key}[{weighted.index(False)}].weight is absent and other sources have one: set it for all "
            "sources or for none"
        )
        raise InvalidInputError(message, code="config_value")
