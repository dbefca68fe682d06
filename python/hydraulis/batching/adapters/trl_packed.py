"""A packed data set for TRL from an index of `hydraulis pack`: rows end to end with the column `seq_lengths`.

    index = open_length_index("train.index")
    arguments = SFTConfig(packing=False, padding_free=True)
    trainer = SFTTrainer(..., train_dataset=pack_rows(data, index), args=arguments)

TRL's `pack_dataset` writes the same column. The tokens are copied row by row, by `datasets`.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydraulis.batching.items.length_index import LengthIndex
from hydraulis.batching.options import check_data
from hydraulis.errors import InvalidInputError

# Columns with one value for each token that TRL's collator reads.
_TOKEN_COLUMNS = ("input_ids", "labels", "completion_mask", "assistant_masks")


def pack_rows(data: Any, index: LengthIndex, columns: tuple[str, ...] | None = None) -> Any:
    """Join the sequences of each window to one row.

    Args:
        data: A `datasets.Dataset` in the order of the index.
        index: Index of the data set.
        columns: Columns with one value for each token; if left out, those of `input_ids`, `labels`,
            `completion_mask` and `assistant_masks` that the data has.

    Raises:
        InvalidInputError: The data has another number of sequences than the index, or a column another length
            (code `lengths_invalid`).
    """
    names = columns or tuple(name for name in _TOKEN_COLUMNS if name in data.column_names)
    check_data(data, len(index.lengths))
    numbers = data.select_columns([]).from_dict({"window": range(len(index.window_offsets) - 1)})

    def join(row: dict[str, int]) -> dict[str, list[int]]:
        window = index.window(row["window"])
        rows = data[window.tolist()]
        for name in names:
            _check_lengths(name, rows[name], window, index)
        joined = {name: [value for one in rows[name] for value in one] for name in names}
        return joined | {"seq_lengths": index.lengths[window].tolist()}

    return numbers.map(join, remove_columns=["window"])


def _check_lengths(name: str, values: list[list[Any]], window: NDArray[np.int64], index: LengthIndex) -> None:
    for sequence, one in zip(window.tolist(), values, strict=True):
        if len(one) != index.lengths[sequence]:
            message = (
                f"sequence {sequence} has {len(one)} values of '{name}' in the data and "
                f"{index.lengths[sequence]} tokens in the index; write the index of this data with hydraulis "
                "pack"
            )
            raise InvalidInputError(message, code="lengths_invalid")
