"""Whether a batch repeats the same few sequences over and over, which is seldom meant."""

from hydraulis.config.run import RunConfig
from hydraulis.data.dataset import Integers, SequenceSource
from hydraulis.data.open import sampler_for
from hydraulis.data.sampling.sampler import BatchSampler
from hydraulis.text.numbers import counted

# In a batch. So many of a small file may be meant, to try something out; more are a mistake as a rule.
MOST_EPOCHS = 100


def repeats_note(budget: str, sampler: BatchSampler, lengths: Integers) -> str:
    """Say that a batch holds more epochs than one would mean it to; empty if it does not.

    Args:
        budget: of a batch, as it is called where it is set.
        sampler: that draws the batches.
        lengths: of the sequences that it draws from.
    """
    if sampler.epochs_per_batch <= MOST_EPOCHS:
        return ""
    epoch = f"{counted(len(lengths), 'sequence')} of {counted(int(lengths.sum()), 'token')} in all"
    return (
        f"{budget} = {sampler.per_batch:,}: the data, {epoch}, come about "
        f"{sampler.epochs_per_batch:,.0f} times in each batch: it holds the same over and over; lower it, or "
        "add data"
    )


def repeats_of(config: RunConfig, data: SequenceSource) -> str:
    """Say it of the batches of a run; see `repeats_note`."""
    sampler = sampler_for(config.data, data, config.train.seed, config.train.epochs)
    return repeats_note(f"data.{config.data.budget_key}", sampler, data.lengths)
