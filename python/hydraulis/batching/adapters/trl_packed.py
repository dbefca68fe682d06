"""A packed data set for TRL from an index of `hydraulis pack`: rows end to end with the column `seq_lengths`.

    index = open_length_index("train.index")
    arguments = SFTConfig(packing=False, padding_free=True)
    trainer = SFTTrainer(..., train_dataset=pack_rows(data, index), args=arguments)

TRL's `pack_dataset` writes the same column. The tokens are copied row by row, by `datasets`.
"""

from typing import Any

from hydraulis.batching.items.length_index import LengthIndex
from hydraulis.batching.options import check_data
from hydraulis.errors import InvalidInputError


def pack_rows(data: Any, index: LengthIndex, columns: tuple[str, ...] = ("input_ids",)) -> Any:
    """Join the sequences of each window to one row.

    Args:
        data: A `datasets.Dataset` in the order of the index.
        index: Index of the data set.
        columns: Columns with one value for each token.

    Raises:
        InvalidInputError: The data has another number of sequences or another length than the index (code
            `lengths_invalid`).
    """
    check_data(data, len(index.lengths))
    numbers = data.select_columns([]).from_dict({"window": range(len(index.window_offsets) - 1)})

    def join(row: dict[str, int]) -> dict[str, list[int]]:
        window = index.window(row["window"])
        rows = data[window.tolist()]
        for sequence, tokens in zip(window, rows[columns[0]], strict=True):
            if len(tokens) != index.lengths[sequence]:
                message = (
                    f"sequence {sequence} has {len(tokens)} tokens in the data and {index.lengths[sequence]} "
                    "in the index; write the index of this data with hydraulis pack"
                )
                raise InvalidInputError(message, code="lengths_invalid")
        joined = {name: [value for one in rows[name] for value in one] for name in columns}
        return joined | {"seq_lengths": [len(one) for one in rows[columns[0]]]}

    return numbers.map(join, remove_columns=["window"])
