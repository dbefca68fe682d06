"""The data: tokenizer and template, files, the state of the index, and how long the run is."""

from pathlib import Path

from hydraulis.config.run import RunConfig
from hydraulis.data.dataset import check_largest_token
from hydraulis.data.index.builder import check_index_directory
from hydraulis.data.open import Datasets, make_datasets, open_sources
from hydraulis.data.sampling.run_length import run_length
from hydraulis.data.sampling.run_sampler import describe_run_repeats
from hydraulis.data.sources.source_state import SourceState, inspect_sources
from hydraulis.data.sources.stdlib import StandardLibrary
from hydraulis.data.tokenization.tokenizer import load_tokenizer
from hydraulis.preflight.finding import Status, warned
from hydraulis.runtime.hugging_face.files import tokenizer_note
from hydraulis.text.numbers import format_count


class DataLook:
    """Looks at the data of a run, and keeps them if they can be read at once.

    Attributes:
        config: of the run.
        data: the sequences; None where they are not indexed yet.
    """

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.data: Datasets | None = None

    def tokenizer(self) -> tuple[Status, str]:
        """Load the tokenizer, and compare its tokens with the model's rows.

        Raises:
            InvalidInputError: it is refused (see `load_tokenizer`), or has a token that the model has no row
                for (code `token_out_of_range`).
        """
        if self.config.data.sources and all(one.format == "tokens" for one in self.config.data.sources):
            return "ok", "not needed: all sources hold tokens"
        name, rows = self.config.data.tokenizer, self.config.model.vocab_size
        tokenizer = load_tokenizer(name)
        check_largest_token(f"data.tokenizer = '{name}' gives tokens up to", tokenizer.vocab_size - 1, rows)
        said = tokenizer_note(self.config.checkpoint.weights, self.config.data)
        text = f"{name}: {tokenizer.vocab_size:,} tokens, {rows:,} rows of the model"
        return warned(text, said)

    def sources(self) -> tuple[Status, str]:
        """Find the files, open them as far as they are indexed, and try the first records of the others.

        Raises:
            HydraulisError: files or records are refused, or hold tokens that the model has no row for, or
                their index cannot be written.
        """
        config = self.config.data
        states = inspect_sources(config)
        prepared = [one.prepared for one in states if one.prepared is not None]
        if len(prepared) < len(states):
            check_index_directory(Path(config.index_directory))
            return "later", "; ".join(_account(number, one) for number, one in enumerate(states))
        if states:
            self.data = open_sources(config, prepared)
        else:
            self.data = make_datasets(config, [[StandardLibrary.load()]])
        self.data.train.check_vocabulary(self.config.model.vocab_size)
        train = self.data.train
        source = (
            format_count(len(states), "source")
            if states
            else "Python's standard library, as data.sources names no files"
        )
        text = f"{source}: {len(train):,} sequences of {int(train.lengths.sum()):,} tokens are ready"
        if self.data.held_out is not None:
            text += f", {len(self.data.held_out):,} are held out"
        if train.num_broken:
            text += f", {format_count(train.num_broken, 'broken record')} left out"
        return warned(text, describe_run_repeats(self.config, train))

    def length(self) -> tuple[Status, str]:
        """Count the iterations, and name what is never reached in so few.

        Raises:
            InvalidInputError: no epoch fills a batch, and its end is to be dropped (code `argument_invalid`).
        """
        steps, epochs = self.config.train.steps, self.config.train.epochs
        if epochs is None:
            assert steps is not None  # one of the two says how long it is
            return warned(format_count(steps, "step"), *_not_reached(self.config, steps))
        if self.data is None:
            return (
                "later",
                f"{format_count(epochs, 'epoch')}; how many steps is known once the data are indexed",
            )
        found = run_length(self.config, self.data.train)
        assert found is not None  # there are epochs
        first = found.steps if steps is None else min(steps, found.steps)
        last = f"the last of {found.last_tokens:,} tokens"
        text = f"{format_count(first, 'step')}; {found}, {last}"
        dropped = format_count(found.dropped, "sequence")
        text += f"; dropped at ends of epochs: {dropped}" if found.dropped else ""
        return warned(text, *_not_reached(self.config, first))

    @property
    def longest(self) -> int | None:
        """Tokens of the longest sequence; None while it is not known."""
        return None if self.data is None else self.data.longest

    @property
    def sequences_per_batch(self) -> float | None:
        """Sequences of a batch, in the mean; None while it is not known."""
        if self.data is None:
            return None
        stated, train = self.config.data.sequences_per_batch, self.data.train
        if stated is not None:
            return stated
        return self.config.data.batch_tokens * len(train) / int(train.lengths.sum())


def _not_reached(config: RunConfig, steps: int) -> list[str]:
    """Name what a longer run would reach."""
    warmup, decay = config.optimizer.warmup_steps, config.optimizer.decay_steps
    traced = config.train.trace_step
    found = []
    if warmup > steps:
        found.append(f"optimizer.warmup_steps = {warmup:,} ends after them: the full rate is never reached")
    elif warmup + decay > steps:
        found.append(f"optimizer.decay_steps = {decay:,} begin in the warm-up: fewer of them are left")
    if traced is not None and traced > steps:
        found.append(f"train.trace_step = {traced:,} comes after them: the last one is traced")
    return found


def _account(number: int, state: SourceState) -> str:
    name = f"source {number}, {format_count(state.files, 'file')}"
    if state.prepared is not None:
        return f"{name}: ready"
    indexed = format_count(state.documents, "document")
    how_far = f"indexed so far: {indexed}" if state.documents else "no index yet"
    # Of many files some are tried, and an empty one has no record.
    return f"{name}: {how_far}; its first records can be read (hydraulis analyze and training read them all)"
