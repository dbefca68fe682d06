"""Numbers in the core's messages are written as everywhere else."""

from collections.abc import Callable

import pytest

from hydraulis import Cluster, HydraulisError, LengthHistogram, Scheme, Strategy, pack_windows


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        (lambda: Cluster(gpus=2_097_152, gpus_per_node=8), "2,097,152 GPUs .* 1 to 1,048,576 GPUs"),
        (lambda: Strategy("1048577x<1>"), "the count 1,048,577 is outside 1 to 1,048,576"),
        (lambda: Scheme("<tp70000>"), "degrees from 1 to 65,535"),
        (lambda: LengthHistogram([1 << 27]), "has length 134,217,728: .* from 1 to 67,108,864"),
        (
            lambda: pack_windows([40_000], window_tokens=32_768),
            "1 of 1 .* window of 32,768 tokens; .* of 40,000: ",
        ),
    ],
)
def test_large_numbers_are_written_in_groups(refused: Callable[[], object], says: str) -> None:
    with pytest.raises(HydraulisError, match=says):
        refused()
