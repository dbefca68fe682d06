import sys
from types import ModuleType

import pytest

from helpers import refused
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


def test_the_function_is_replaced_wherever_it_was_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def original() -> None: ...

    origin, early, other = "verl.utils.seqlen_balancing", "verl.trainer.ppo.v1.trainer_base", "verl.other"
    for name in ("verl", "verl.utils", origin, early, other, "verlike"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for name in (origin, early, "verlike"):
        monkeypatch.setattr(sys.modules[name], "get_seqlen_balanced_partitions", original, raising=False)
    monkeypatch.setitem(sys.modules, "verl.blocked", None)
    for _ in range(2):
        assert sorted(install()) == sorted([origin, early])
    for name in (origin, early):
        assert sys.modules[name].get_seqlen_balanced_partitions is balanced_partitions
    assert sys.modules["verlike"].get_seqlen_balanced_partitions is original


@pytest.mark.parametrize("module", [None, ModuleType("verl.utils.seqlen_balancing")])
def test_nothing_to_replace_is_an_error(monkeypatch: pytest.MonkeyPatch, module: ModuleType | None) -> None:
    for name in ("verl", "verl.utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "verl.utils.seqlen_balancing", module)
    with refused("extra_missing", "seqlen_balancing", "ray"):
        install()
