"""Numbers in the core's messages are written as everywhere else."""

from collections.abc import Callable

import pytest

from helpers import refused
from hydraulis import Cluster, LengthHistogram, Scheme, Strategy, pack_windows


@pytest.mark.parametrize(
    ("call", "code", "numbers"),
    [
        (lambda: Cluster(gpus=2_097_152, gpus_per_node=8), "argument_invalid", ("2,097,152", "1,048,576")),
        (lambda: Strategy("1048577x<1>"), "strategy_invalid", ("1,048,577", "1,048,576")),
        (lambda: Scheme("<tp70000>"), "strategy_invalid", ("65,535",)),
        (lambda: LengthHistogram([1 << 27]), "lengths_invalid", ("134,217,728", "67,108,864")),
        (lambda: pack_windows([40_000], window_tokens=32_768), "sequence_too_long", ("32,768", "40,000")),
    ],
)
def test_large_numbers_are_written_in_groups(
    call: Callable[[], object], code: str, numbers: tuple[str, ...]
) -> None:
    with refused(code, *numbers):
        call()
