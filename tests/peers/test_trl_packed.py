"""TRL's padding-free collator on rows of an index; the cases follow its tests of `pack_dataset`."""

from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from batching.drawn import long_tail
from helpers import refused
from hydraulis import pack_windows
from hydraulis.batching import open_length_index
from hydraulis.batching.adapters.trl_packed import pack_rows
from hydraulis.batching.items.length_index import write_length_index

LENGTHS = long_tail(60, longest=100)


def test_rows_have_whole_sequences_and_their_lengths(tmp_path: Path) -> None:
    data = Dataset.from_dict(
        {
            "input_ids": [[index] * int(size) for index, size in enumerate(LENGTHS)],
            "completion_mask": [[0] + [1] * (int(size) - 1) for size in LENGTHS],
        }
    )
    (tmp_path / "data").touch()
    windows = pack_windows(LENGTHS, window_tokens=128)
    write_length_index(tmp_path / "data.index", tmp_path / "data", LENGTHS, windows)
    packed = pack_rows(data, open_length_index(tmp_path / "data.index"))
    assert packed.column_names == ["input_ids", "completion_mask", "seq_lengths"]
    seen = []
    for row in packed:
        assert len(row["input_ids"]) == len(row["completion_mask"]) == sum(row["seq_lengths"]) <= 128
        parts = np.split(np.array(row["input_ids"]), np.cumsum(row["seq_lengths"])[:-1])
        assert all(len(part) == LENGTHS[part[0]] and len(set(part.tolist())) == 1 for part in parts)
        seen += [int(part[0]) for part in parts]
    assert sorted(seen) == list(range(60))
    collate = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    batch = collate([packed[0], packed[1]])
    starts = int((batch["position_ids"] == 0).sum())
    assert starts == len(packed[0]["seq_lengths"]) + len(packed[1]["seq_lengths"])
    assert torch.equal(batch["labels"][batch["position_ids"] == 0], torch.full((starts,), -100))


def test_data_and_index_are_compared(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    windows = pack_windows(LENGTHS, window_tokens=128)
    write_length_index(tmp_path / "data.index", tmp_path / "data", LENGTHS, windows)
    index = open_length_index(tmp_path / "data.index")
    longer = Dataset.from_dict({"input_ids": [[1] * (size + 1) for size in index.lengths.tolist()]})
    with refused("lengths_invalid", "in the index"):
        pack_rows(longer, index)
    masks = [[1] * (size - 1) for size in index.lengths.tolist()]
    tokens = [[1] * size for size in index.lengths.tolist()]
    with refused("lengths_invalid", "values of 'completion_mask'"):
        pack_rows(Dataset.from_dict({"input_ids": tokens, "completion_mask": masks}), index)
    with refused("lengths_invalid", "the data set has"):
        pack_rows(longer.select(range(3)), index)
