"""The analysis of the data that a run is begun on."""

from hydraulis.config.run import RunConfig
from hydraulis.data.analysis import Analysis, batch_imbalance, length_statistics
from hydraulis.data.dataset import SequenceSource
from hydraulis.data.open import sampler_for

_MOST_BATCHES = 50


def analysis_of(config: RunConfig, data: SequenceSource, replicas: int) -> Analysis:
    """Look at all lengths, and at the first batches.

    Args:
        config: of the run, its number of steps known.
        data: that is trained on.
        replicas: to which plain data parallelism would deal each batch out, if it has so many sequences.
    """
    sampler = sampler_for(config.data, data, config.train.seed, config.train.epochs)
    steps = range(min(_MOST_BATCHES, config.train.num_steps))
    return Analysis(
        lengths=length_statistics(data.lengths, data.target_counts),
        batches=batch_imbalance([data.lengths[sampler.batch(step).documents] for step in steps], replicas),
    )
