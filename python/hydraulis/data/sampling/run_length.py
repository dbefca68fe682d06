"""How many iterations a run has, once its data is known."""

import dataclasses

from hydraulis.config.run import RunConfig
from hydraulis.data.dataset import SequenceSource
from hydraulis.data.sampling.run_sampler import make_sampler
from hydraulis.text.numbers import format_count


@dataclasses.dataclass(frozen=True, slots=True)
class RunLength:
    """What the epochs of a run come to.

    Attributes:
        epochs: so many.
        steps: in which they are trained.
        last_sequences: of the last batch, which may be a short one.
        last_tokens: of it.
        dropped: sequences that fill no batch at the ends of the epochs.
    """

    epochs: int
    steps: int
    last_sequences: int
    last_tokens: int
    dropped: int

    def __str__(self) -> str:
        """Say how many steps the epochs are."""
        are = "is" if self.epochs == 1 else "are"
        return f"{format_count(self.epochs, 'epoch')} {are} {format_count(self.steps, 'step')}"


def run_length(config: RunConfig, data: SequenceSource) -> RunLength | None:
    """Count what the epochs of a configuration come to; None where it counts steps alone.

    Raises:
        InvalidInputError: no epoch fills a batch, and its end is to be dropped, or the epochs are very many
            steps (code `argument_invalid`).
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
    """Return the configuration with its number of iterations: what is given, or the epochs if they are fewer.

    Args:
        config: of a run.
        epochs: as `run_length` gave it.
    """
    if epochs is None:
        return config
    steps = min(epochs.steps, config.train.steps or epochs.steps)
    return dataclasses.replace(config, train=dataclasses.replace(config.train, steps=steps))
