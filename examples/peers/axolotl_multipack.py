"""axolotl: `python examples/peers/axolotl_multipack.py`, the sampler of its trainers for two ranks."""

import os

import numpy as np
from axolotl.utils.samplers.multipack import MultipackBatchSampler
from torch.utils.data import DataLoader, RandomSampler
from toy import toy_data, toy_model

from hydraulis.batching import SequenceCost
from hydraulis.batching.adapters.axolotl_multipack import BalancedMultipackBatchSampler
from hydraulis.batching.collators import TransformersCollator

os.environ["WORLD_SIZE"] = "2"
data, model = toy_data(640), toy_model()
lengths = np.array([len(row) for row in data["input_ids"]])
cost = SequenceCost.of(model.config)
BalancedMultipackBatchSampler.cost = cost
for name, kind in (("before", MultipackBatchSampler), ("after", BalancedMultipackBatchSampler)):
    sampler = kind(
        RandomSampler(data), batch_size=1, batch_max_len=512, lengths=lengths, bin_size=200, drop_last=True
    )
    # A batch is a list of bins; accelerate gives the ranks every second batch.
    bins = [batch[0] for batch in sampler]
    times = [float(cost.times(lengths[one]).sum()) for one in bins[: len(bins) // 2 * 2]]
    pairs = np.reshape(times, (-1, 2))
    print(f"{name}: {pairs.max(1).sum() * 2 / pairs.sum():.6f} of the mean, {len(bins)} micro-batches")
collate = TransformersCollator()
loader = DataLoader(data, batch_sampler=bins, collate_fn=collate)
print(f"loss of the first {model(**next(iter(loader))).loss:.3f}")
