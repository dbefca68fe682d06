"""The number of iterations of a run, from its epochs and its data."""

import dataclasses

from hydraulis.config.run import RunConfig
from hydraulis.data.dataset import SequenceSource
from hydraulis.data.sampling.run_sampler import make_sampler
from hydraulis.text.values import format_count


@dataclasses.dataclass(frozen=True, slots=True)
class RunLength:
    """The length of a run that is limited by epochs.

    Attributes:
        epochs: Number of epochs.
        steps: Number of iterations.
        last_sequences: Sequences of the last batch, which may be smaller.
        last_tokens: Tokens of the last batch.
        dropped: Number of sequences that fill no batch at the ends of epochs.
    """

    epochs: int
    steps: int
    last_sequences: int
    last_tokens: int
    dropped: int

    def __str__(self) -> str:
        """Return the text "2 epochs are 40 steps"."""
        are = "is" if self.epochs == 1 else "are"
        return f"{format_count(self.epochs, 'epoch')} {are} {format_count(self.steps, 'step')}"


def run_length(config: RunConfig, data: SequenceSource) -> RunLength | None:
    """Compute the length of a run with epochs; None for a run with steps alone.

    Raises:
        InvalidInputError: An epoch fills no batch and its end is dropped, or there are too many steps (code
            `argument_invalid`).
    """
    epochs = config.train.epochs
    if epochs is None:
        return None
    sampler = make_sampler(config.data, data, config.train.seed, epochs)
    steps = sampler.num_steps(epochs)
    last = sampler.batch(steps - 1).sequences
    tokens = int(data.lengths[last].sum())
    return RunLength(epochs, steps, len(last), tokens, sampler.num_dropped(steps))


def with_steps(config: RunConfig, epochs: RunLength | None) -> RunConfig:
    """Set the number of iterations: `train.steps`, or the steps of the epochs if those are fewer.

    Args:
        config: Configuration of the run.
        epochs: Result of `run_length`.
    """
    if epochs is None:
        return config
    steps = min(epochs.steps, config.train.steps or epochs.steps)
    return dataclasses.replace(config, train=dataclasses.replace(config.train, steps=steps))
