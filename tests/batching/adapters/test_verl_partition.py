import sys
from types import ModuleType

import pytest

from hydraulis.batching.adapters.verl_partition import balanced_partitions, install


def test_the_partition_keeps_the_contract() -> None:
    """As verl's own tests state it: every index once, no empty part, in order, equal sizes on request."""
    lengths = [50, 1, 2, 30, 9, 9, 40, 7]
    for equal in (True, False):
        parts = balanced_partitions(lengths, 4, equal)
        assert sorted(i for part in parts for i in part) == list(range(8))
        assert all(part == sorted(part) and part for part in parts)
        assert not equal or [len(part) for part in parts] == [2] * 4
    with pytest.raises(AssertionError, match="2 items"):
        balanced_partitions([1, 2], 3, equal_size=False)
    with pytest.raises(AssertionError, match="8 % 3"):
        balanced_partitions(lengths, 3, equal_size=True)


def test_the_function_is_replaced_in_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("verl", "verl.utils", "verl.utils.seqlen_balancing"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "verl.trainer", None)
    assert install() == ["verl.utils.seqlen_balancing"]
    assert sys.modules["verl.utils.seqlen_balancing"].get_seqlen_balanced_partitions is balanced_partitions
