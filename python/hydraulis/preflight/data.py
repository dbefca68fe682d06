"""The checks of the data: tokenizer, files, index, and the number of steps."""

from collections.abc import Sequence
from pathlib import Path

from hydraulis.config.data import CHAT_FORMATS, DataConfig
from hydraulis.config.run import RunConfig
from hydraulis.data.dataset import Dataset, check_largest_token
from hydraulis.data.index.builder import check_index_directory
from hydraulis.data.open import Datasets, make_datasets, open_sources
from hydraulis.data.sampling.run_length import run_length
from hydraulis.data.sampling.run_sampler import describe_run_repeats
from hydraulis.data.sources.data_files import describe_repeated_files
from hydraulis.data.sources.prepare import make_index_job
from hydraulis.data.sources.source_state import SourceState, inspect_sources
from hydraulis.data.sources.stdlib import StandardLibrary
from hydraulis.data.tokenization.prompts import longest_prompt
from hydraulis.data.tokenization.tokenizer import load_tokenizer
from hydraulis.errors import HydraulisError
from hydraulis.preflight.finding import Status, with_warnings
from hydraulis.runtime.hugging_face.files import check_tokenizer, tokenizer_note
from hydraulis.text.values import format_count


class DataChecks:
    """Checks of the run's data.

    Attributes:
        config: Configuration of the run.
        data: Sequences of the run, after the check `sources`; None if they are not indexed yet.
        steps: Number of steps, after the check `length`; None if it follows from data without an index.
        longest_prompt: Tokens of the longest prompt of samples with its continuation, after the check
            `tokenizer`; 0 without samples.
    """

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.data: Datasets | None = None
        self.steps: int | None = None
        self.longest_prompt = 0

    def tokenizer(self) -> tuple[Status, str]:
        """Load the tokenizer, and compare its tokens with the model's vocabulary.

        Raises:
            InvalidInputError: The tokenizer is refused (see `load_tokenizer`), has a token outside the
                model's vocabulary (code `token_out_of_range`), or the prompts of samples are refused (see
                `longest_prompt`).
        """
        self.longest_prompt = longest_prompt(self.config)
        if not self.config.data.holds_text:
            return "ok", "not needed: all sources hold tokens"
        name, rows = self.config.data.tokenizer, self.config.model.vocab_size
        tokenizer = load_tokenizer(name)
        check_largest_token(f"data.tokenizer = '{name}' gives tokens up to", tokenizer.vocab_size - 1, rows)
        check_tokenizer(self.config.checkpoint.weights, self.config.data)
        note = tokenizer_note(self.config.checkpoint.weights, self.config.data)
        text = f"{name}: {tokenizer.vocab_size:,} tokens, {rows:,} in the model's vocabulary"
        text += _reasoning_remark(self.config.data)
        return with_warnings(text, note)

    def sources(self) -> tuple[Status, str]:
        """Find the files, open the indexed ones, and read the first records of the others.

        Raises:
            HydraulisError: Files or records are refused, a token is outside the model's vocabulary, or the
                index cannot be written.
        """
        config = self.config.data
        states = inspect_sources(config)
        prepared = [one.prepared for one in states if one.prepared is not None]
        if len(prepared) < len(states):
            check_index_directory(Path(config.index_directory))
            text = "; ".join((*_index_states(config, states), _UNREAD))
            repeated = describe_repeated_files(config)
            return with_warnings(text, *repeated) if repeated else ("later", text)
        if states:
            self.data = open_sources(config, prepared)
        else:
            self.data = make_datasets(config, [[StandardLibrary.load()]])
        self.data.check_vocabulary(self.config.model.vocab_size)
        return with_warnings(
            _describe(self.data, self.config.data),
            describe_run_repeats(self.config, self.data.train),
            *describe_repeated_files(config),
        )

    def length(self) -> tuple[Status, str]:
        """Count the steps, and warn of settings that take effect after the last one.

        Raises:
            InvalidInputError: No epoch fills a batch, and `data.epoch_end` drops incomplete ones (code
                `argument_invalid`).
        """
        steps, epochs = self.config.train.steps, self.config.train.epochs
        if epochs is None:
            assert steps is not None  # a valid configuration sets one of the two
            self.steps = steps
            return with_warnings(format_count(steps, "step"), *_unreached(self.config, steps))
        if self.data is None:
            return self._unknown_length(epochs)
        found = run_length(self.config, self.data.train)
        assert found is not None  # train.epochs is set
        num_steps = found.steps if steps is None else min(steps, found.steps)
        self.steps = num_steps
        text = f"{format_count(num_steps, 'step')}; {found}, the last of {found.last_tokens:,} tokens"
        if found.dropped:
            text += f"; dropped at ends of epochs: {format_count(found.dropped, 'sequence')}"
        return with_warnings(text, *_unreached(self.config, num_steps))

    def _unknown_length(self, epochs: int) -> tuple[Status, str]:
        """Compare settings with `train.steps`, the most that there can be; name those that remain."""
        text = f"{format_count(epochs, 'epoch')}; the number of steps follows from the indexed data"
        most = self.config.train.steps
        unreached = _unreached(self.config, most) if most is not None else []
        if unreached:
            return with_warnings(f"{text}, at most {most:,}", *unreached)
        optimizer, train = self.config.optimizer, self.config.train
        compared = {
            "optimizer.warmup_steps": optimizer.warmup_steps,
            "optimizer.decay_steps": optimizer.decay_steps,
            "train.trace_step": train.trace_step,
        }
        names = [f"{name} = {value:,}" for name, value in compared.items() if value]
        return "later", "; ".join((text, *([f"compare it with {', '.join(names)}"] if names else [])))

    @property
    def train(self) -> Dataset | None:
        """The training sequences; None if they are not indexed yet."""
        return None if self.data is None else self.data.train

    @property
    def longest(self) -> int | None:
        """Tokens of the longest sequence; None if the data are not indexed yet."""
        return None if self.data is None else self.data.longest

    @property
    def sequences_per_batch(self) -> float | None:
        """Mean number of sequences of a batch; None if the data are not indexed yet."""
        if self.data is None:
            return None
        stated, train = self.config.data.sequences_per_batch, self.data.train
        if stated is not None:
            return stated
        return self.config.data.batch_tokens * len(train) / int(train.lengths.sum())


def _reasoning_remark(config: DataConfig) -> str:
    """Return a remark on a chat template that leaves out earlier reasoning, otherwise an empty string."""
    chats = [source for source in config.sources if source.format in CHAT_FORMATS]
    if not chats:
        return ""
    try:
        template = make_index_job(config, chats[0], ()).compiled_template()
    except HydraulisError:
        # The check of the records refuses the template.
        return ""
    if not template.leaves_out_earlier_reasoning:
        return ""
    return "; the chat template leaves the reasoning of earlier messages out, so it is not trained"


def _describe(data: Datasets, config: DataConfig) -> str:
    train = data.train
    source = (
        format_count(len(config.sources), "source")
        if config.sources
        else "Python's standard library, as data.sources names no files"
    )
    text = f"{source}: {len(train):,} sequences of {int(train.lengths.sum()):,} tokens are ready"
    if data.held_out is not None:
        use = "for validation" if config.validation else "are held out"
        text += f", {len(data.held_out):,} {use}"
    if train.num_broken:
        text += f", {format_count(train.num_broken, 'broken record')} left out"
    validation = [found for found in data.describe_left_out() if found.startswith("data.validation: ")]
    return "; ".join((text, *validation))


def _unreached(config: RunConfig, steps: int) -> list[str]:
    """Name the settings that take effect after the last step."""
    warmup, decay = config.optimizer.warmup_steps, config.optimizer.decay_steps
    traced = config.train.trace_step
    found = []
    if warmup > steps:
        found.append(f"optimizer.warmup_steps = {warmup:,} exceeds them: the full rate is never reached")
    elif warmup + decay > steps:
        found.append(f"optimizer.decay_steps = {decay:,} overlaps the warm-up and is shortened")
    if traced is not None and traced > steps:
        found.append(f"train.trace_step = {traced:,} exceeds them: the last step is traced")
    if any(step > steps for step in config.train.profile_steps):
        most = max(config.train.profile_steps)
        found.append(f"train.profile_steps has {most:,}, which exceeds them: it is not recorded")
    return found


# Only some of many files are tried, and an empty one has no record.
_UNREAD = (
    "the first records can be read; `hydraulis analyze RUN.toml` and training index all of them, and `check` "
    "then checks the rest"
)


def _index_states(config: DataConfig, states: Sequence[SourceState]) -> list[str]:
    num_trained = len(config.sources)
    return [
        _index_state(f"source {n}" if n < num_trained else f"validation {n - num_trained}", state)
        for n, state in enumerate(states)
    ]


def _index_state(name: str, state: SourceState) -> str:
    name = f"{name}, {format_count(state.files, 'file')}"
    if state.prepared is not None:
        return f"{name}: ready"
    documents = format_count(state.documents, "document")
    return f"{name}: indexed so far: {documents}" if state.documents else f"{name}: no index yet"
