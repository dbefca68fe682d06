from typing import Any

import numpy as np
import pytest

from helpers import refused
from hydraulis.batching.items.groups import make_groups
from hydraulis.batching.items.values import make_values

LENGTHS = np.array([5, 6, 7, 8])


def test_values_of_items_are_looked_up() -> None:
    values = make_values(4, [0.5, 0, 2, 3], np.array([4, 0, 2, 9], dtype=np.int16), 9, None)
    chosen = np.array([3, 0])
    assert values.work_of(chosen).tolist() == [3.0, 0.5]  # type: ignore[union-attr]
    assert values.extra_of(chosen).tolist() == [9, 4]  # type: ignore[union-attr]
    nothing = make_values(4, None, None, None, None)
    assert nothing.work_of(chosen) is None
    assert nothing.extra_of(chosen) is None


def test_a_group_has_the_sum_of_its_sequences() -> None:
    groups = make_groups(LENGTHS, np.array([7, 2, 7, 2]), None)
    values = make_values(4, [1, 2, 4, 8], [10, 20, 30, 40], 60, groups)
    everything = np.arange(2)
    assert values.work_of(everything).tolist() == [5, 10]  # type: ignore[union-attr]
    assert values.extra_of(everything).tolist() == [40, 60]  # type: ignore[union-attr]
    with refused("sequence_too_long", "group 1", 60, 59):
        make_values(4, None, [10, 20, 30, 40], 59, groups)


def test_a_checksum_tells_values_and_their_kind_apart() -> None:
    def checksum(**changed: Any) -> int:
        options: dict[str, Any] = {"work": [1, 2, 3, 4], "extra_tokens": None, "cap_extra": None}
        return make_values(4, groups=None, **(options | changed)).checksum

    other = {"work": None, "extra_tokens": [1, 2, 3, 4], "cap_extra": 9}
    found = {checksum(), checksum(work=[1, 2, 4, 3]), checksum(**other), checksum(work=None)}
    assert len(found) == 4
    assert checksum(work=None) == 0


@pytest.mark.parametrize("values", [[1, 2, 3], [[1, 2, 3, 4]], ["a"] * 4])
def test_other_shapes_and_types_are_refused(values: Any) -> None:
    with refused("lengths_invalid", "work", 4):
        make_values(4, values, None, None, None)
    with refused("lengths_invalid", "extra_tokens", "whole"):
        make_values(4, None, [0.5] * 4, 9, None)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_values_out_of_range_are_named(value: float) -> None:
    with refused("lengths_invalid", "sequence 2", str(value)):
        make_values(4, [0, 1, value, 3], None, None, None)


def test_extra_tokens_need_a_cap_and_keep_it() -> None:
    with refused("argument_invalid", "cap_extra_tokens"):
        make_values(4, None, [1, 2, 3, 4], None, None)
    with refused("argument_invalid", "cap_extra_tokens"):
        make_values(4, None, None, 9, None)
    with refused("sequence_too_long", "sequence 3", "4", "3"):
        make_values(4, None, [1, 2, 3, 4], 3, None)
