"""Better batches for any training loop: a token cap, equal times on all ranks, and exact resumption.

A `BalancedBatchSampler` takes the lengths of a data set and drives any loader that accepts a `batch_sampler`:

>>> from hydraulis.batching import BalancedBatchSampler
>>> sampler = BalancedBatchSampler(
...     [31_000, 12_000, 900, 900, 450, 80, 70, 60],  # tokens of each sequence
...     cap_tokens=32_768,  # most tokens of a micro-batch
...     cost=(24_576, 1),  # time per token and per squared token, or a model's configuration
...     ranks=2,
...     rank=0,
...     sequences_per_step=8,
... )
>>> [sorted(batch) for batch in sampler]  # with `DataLoader(dataset, batch_sampler=sampler)`
[[0]]
>>> print(sampler.report())
1 steps of 8 sequences with 45,460 tokens, in 2 micro-batches, 69.4% full
reached 1.549x of the ideal; no plan without splitting is below 1.549x
lost to imbalance: 35.5%
lost to cap: 0.0%
lost to padding: 0.0%
lost to micro-batches: 0.0%
step 0: no plan without splitting is below 1.55x: sequence 0 has 31,000 tokens

- `SequenceCost` is the time of a sequence, from a cost profile, a model's configuration or two numbers.
- `make_forest` merges the common prefixes of sequences, which occupy a micro-batch once.
- `open_lengths` opens the lengths of arrays, data sets and files.
- `hydraulis.batching.collators` packs the samples of a batch for transformers, flash-attn and Megatron.
- `hydraulis.batching.adapters` has a module for each framework; `docs/drop-in.md` shows their use.

The package needs numpy alone; collators and adapters import torch and their framework.
"""

from hydraulis.batching.cost import SequenceCost
from hydraulis.batching.items.length_index import LengthIndex, open_length_index
from hydraulis.batching.items.lengths import open_lengths
from hydraulis.batching.items.prefix_tree import PrefixForest, make_forest
from hydraulis.batching.report import BalanceReport, BoundingSequence
from hydraulis.batching.sampler import BalancedBatchSampler
from hydraulis.batching.step_planner import BalancedStep, StepItems, StepPlan, StepPlanner

__all__ = [
    "BalanceReport",
    "BalancedBatchSampler",
    "BalancedStep",
    "BoundingSequence",
    "LengthIndex",
    "PrefixForest",
    "SequenceCost",
    "StepItems",
    "StepPlan",
    "StepPlanner",
    "make_forest",
    "open_length_index",
    "open_lengths",
]
