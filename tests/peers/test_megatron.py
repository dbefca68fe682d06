"""An index written by Megatron-core is a sampler's lengths, and its `PackedSeqParams` take our fields."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
from megatron.core.packed_seq_params import PackedSeqParams

from batching.drawn import long_tail, sampler
from hydraulis.batching import open_lengths
from hydraulis.batching.collators import MegatronCollator

LENGTHS = long_tail(50, longest=100)


@pytest.mark.parametrize("dtype", [np.int32, np.uint16])
def test_an_index_drives_a_loader_of_its_data_set(tmp_path: Path, dtype: Any) -> None:
    builder = IndexedDatasetBuilder(str(tmp_path / "data.bin"), dtype=dtype)
    for index, size in enumerate(LENGTHS):
        builder.add_item(torch.full((int(size),), index))
        builder.end_document()
    builder.finalize(str(tmp_path / "data.idx"))
    assert open_lengths(tmp_path / "data.idx").tolist() == LENGTHS.tolist()
    written = IndexedDataset(str(tmp_path / "data"))
    one = sampler(tmp_path / "data.idx", ranks=1, rank=0, cap_tokens=256, pad_sequence_to=8)
    collate = MegatronCollator(pad_sequence_to=8)
    seen = []
    for batch in one:
        micro_batch = collate([{"input_ids": written[i]} for i in batch])
        assert micro_batch["tokens"].numel() <= 256
        params = PackedSeqParams(**micro_batch["packed_seq_params"])
        sizes = params.cu_seqlens_q.diff().tolist()
        assert sizes == (-(-LENGTHS[batch] // 8) * 8).tolist()
        seen += batch
    assert sorted(seen) == list(range(50))


def test_every_field_exists_in_megatron() -> None:
    fields = {field.name for field in dataclasses.fields(PackedSeqParams)}
    assert set(MegatronCollator()([])["packed_seq_params"]) <= fields
