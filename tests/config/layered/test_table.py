import math
from dataclasses import dataclass
from datetime import date
from typing import Literal

import pytest

from helpers import refused
from hydraulis.config.layered.table import from_table
from hydraulis.errors import InvalidInputError


@dataclass(frozen=True, kw_only=True)
class Leaf:
    text: str
    number: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Tree:
    count: int
    flag: bool = False
    ratio: float = 1.0
    choice: Literal["left", "right"] = "left"
    pair: tuple[float, float] = (0.0, 1.0)
    names: tuple[str, ...] = ()
    limit: int | None = None
    leaf: Leaf


@dataclass(frozen=True, kw_only=True)
class Pair:
    a: int
    b: int


LEAF: dict[str, object] = {"text": "x"}
MINIMAL: dict[str, object] = {"count": 3, "leaf": LEAF}


def test_defaults_and_sub_tables_are_read() -> None:
    assert from_table(Tree, MINIMAL, "tree") == Tree(count=3, leaf=Leaf(text="x"))


def test_every_kind_of_value_is_read() -> None:
    table = {
        "count": 3,
        "flag": True,
        "ratio": 0.25,
        "choice": "right",
        "pair": [0.5, 2],
        "names": ["a", "b"],
        "limit": 7,
        "leaf": {"text": "x", "number": 2},
    }
    tree = from_table(Tree, table, "tree")
    assert tree == Tree(
        count=3,
        flag=True,
        ratio=0.25,
        choice="right",
        pair=(0.5, 2.0),
        names=("a", "b"),
        limit=7,
        leaf=Leaf(text="x", number=2.0),
    )
    # 2 == 2.0 holds for integers too, so equality alone would not see a missing conversion.
    assert [type(number) for number in (*tree.pair, tree.leaf.number)] == [float] * 3


def test_none_stands_for_an_absent_optional_value() -> None:
    assert from_table(Tree, MINIMAL | {"limit": None}, "tree").limit is None


@pytest.mark.parametrize(
    ("table", "parts"),
    [
        ({"cuont": 3}, ["'cuont' in section [tree]", "'count'"]),
        ({"zzz": 3}, ["count, flag, ratio"]),
        ({"leaf": {"txt": 3}}, ["section [tree.leaf]", "'text'"]),
    ],
)
def test_an_unknown_key_is_refused(table: dict[str, object], parts: list[str]) -> None:
    with refused("config_unknown_key", *parts):
        from_table(Tree, MINIMAL | table, "tree")


@pytest.mark.parametrize(
    ("table", "parts"),
    [
        ({"count": 3.0}, ["tree.count = 3.0 ", "a float", "an integer"]),
        ({"count": True}, ["tree.count = true ", "a boolean", "an integer"]),
        ({"count": "3"}, ["tree.count = '3' ", "a string", "an integer", "quotes"]),
        ({"flag": 1}, ["tree.flag = 1 ", "an integer", "a boolean"]),
        ({"ratio": "1"}, ["tree.ratio = '1' ", "a string", "a float", "quotes"]),
        ({"ratio": False}, ["tree.ratio = false ", "a boolean"]),
        ({"choice": "up"}, ["tree.choice = 'up' ", "'left', 'right'"]),
        ({"choice": 1}, ["tree.choice = 1"]),
        ({"pair": 0.5}, ["tree.pair = 0.5 ", "an array of 2 values"]),
        ({"pair": [0.5]}, ["tree.pair = ", "an array of 2 values"]),
        ({"pair": [0.5, "x"]}, ["tree.pair[1] = 'x'"]),
        ({"names": ["a", 2]}, ["tree.names[1] = 2 ", "a string"]),
        ({"names": "ab"}, ["tree.names = 'ab' ", "an array", "['ab']"]),
        ({"limit": "x"}, ["tree.limit = 'x' ", "a string", "an integer"]),
        ({"count": {"a": [True]}}, ["tree.count = { a = [true] } ", "a table"]),
        ({"count": date(2026, 1, 2)}, ["tree.count = 2026-01-02 ", "a date"]),
        ({"leaf": 3}, ["tree.leaf = 3 ", "a table"]),
    ],
)
def test_a_value_of_another_type_is_refused(table: dict[str, object], parts: list[str]) -> None:
    with refused("config_value", *parts):
        from_table(Tree, MINIMAL | table, "tree")


@pytest.mark.parametrize(
    ("table", "parts"),
    [
        ({"leaf": LEAF}, ["'count' in section [tree]"]),
        ({"count": 3, "leaf": {}}, ["'text' in section [tree.leaf]"]),
        ({"count": 3}, ["'text' in section [tree.leaf]"]),
        ({}, ["'count' in section [tree]", "'text' in section [tree.leaf]"]),
    ],
)
def test_a_missing_required_key_is_refused(table: dict[str, object], parts: list[str]) -> None:
    with refused("config_missing_key", *parts):
        from_table(Tree, table, "tree")


@pytest.mark.parametrize(("section", "name"), [("tree", "tree"), ("", "the run configuration")])
def test_a_section_of_another_type_is_refused(section: str, name: str) -> None:
    with refused("config_value", f"{name} = 3 ", "a table"):
        from_table(Tree, 3, section)


def test_an_unknown_name_of_the_file_is_a_section_or_a_key() -> None:
    with refused("config_unknown_key", "section 'leav'", "'leaf'"):
        from_table(Tree, MINIMAL | {"leav": {}}, "")
    with refused("config_unknown_key", "'leav'"):
        from_table(Tree, MINIMAL | {"leav": 3}, "")


def test_values_are_left_to_the_dataclass() -> None:
    assert math.isnan(from_table(Leaf, {"text": "x", "number": math.nan}, "leaf").number)


def test_all_errors_are_reported_together_in_the_order_of_the_table() -> None:
    table = {"cuont": 3, "ratio": "1", "choice": "up", "leaf": {"text": 1, "nmber": 1.0}, "flga": True}
    with pytest.raises(InvalidInputError) as refusal:
        from_table(Tree, table, "tree")
    names = ["'cuont'", "'flga'", "tree.ratio", "tree.choice", "'nmber'", "tree.leaf.text"]
    texts = str(refusal.value).split("; also: ")
    assert [name in text for name, text in zip(names, texts, strict=True)] == [True] * len(names)
    # The code of the first.
    assert refusal.value.code == "config_unknown_key"


def test_missing_keys_are_reported_unless_an_unknown_one_may_be_a_misspelling() -> None:
    with refused("config_missing_key", "'a', 'b'", "[pair]"):
        from_table(Pair, {}, "pair")
    with pytest.raises(InvalidInputError) as refusal:
        from_table(Pair, {"aa": 1}, "pair")
    assert refusal.value.code == "config_unknown_key"
    assert "missing" not in str(refusal.value)
