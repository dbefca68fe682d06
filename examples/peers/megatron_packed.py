"""Megatron-core: `python examples/peers/megatron_packed.py`, an indexed data set in packed micro-batches.

The packing scheduler of Megatron's main and dev branches is not in a wheel: `balanced_scheduler` in
`hydraulis.batching.adapters.megatron_schedule` makes one of its class.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
from megatron.core.packed_seq_params import PackedSeqParams
from toy import toy_data

from hydraulis.batching import BalancedBatchSampler
from hydraulis.batching.collators import MegatronCollator

folder = Path(tempfile.mkdtemp())
builder = IndexedDatasetBuilder(str(folder / "data.bin"), dtype=np.int32)
for row in toy_data()["input_ids"]:
    builder.add_item(torch.tensor(row))
    builder.end_document()
builder.finalize(str(folder / "data.idx"))

# Context parallelism over 2 ranks needs sequences of a multiple of 4 tokens.
data, collate = IndexedDataset(str(folder / "data")), MegatronCollator(pad_sequence_to=4)
sampler = BalancedBatchSampler(
    folder / "data.idx",
    cap_tokens=1024,
    cost=(24_576, 1),
    ranks=2,
    rank=0,
    sequences_per_step=80,
    pad_sequence_to=4,
)
for batch in sampler:
    micro_batch = collate([{"input_ids": data[i]} for i in batch])
    packed = PackedSeqParams(**micro_batch["packed_seq_params"])
    print(
        f"{micro_batch['tokens'].numel()} tokens, {len(packed.cu_seqlens_q) - 1} sequences, "
        f"{micro_batch['num_targets']} targets, longest {packed.max_seqlen_q}"
    )
print(sampler.report())
