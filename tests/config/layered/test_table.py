import math
from dataclasses import dataclass
from datetime import date
from typing import Literal

import pytest

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


def test_defaults_and_sub_tables() -> None:
    assert from_table(Tree, MINIMAL, "tree") == Tree(count=3, leaf=Leaf(text="x"))


def test_every_kind_of_value() -> None:
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
    ("table", "code", "message"),
    [
        ({"cuont": 3}, "config_unknown_key", r"'cuont' in section \[tree\] .* did you mean 'count'"),
        ({"zzz": 3}, "config_unknown_key", "the keys are count, flag, ratio"),
        ({"leaf": {"txt": 3}}, "config_unknown_key", r"section \[tree.leaf\] .* did you mean 'text'"),
        ({"count": 3.0}, "config_value", "tree.count = 3.0 is a float and must be an integer"),
        ({"count": True}, "config_value", "tree.count = true is a boolean and must be an integer"),
        (
            {"count": "3"},
            "config_value",
            "tree.count = '3' is a string and must be an integer; leave the quotes out",
        ),
        ({"flag": 1}, "config_value", "tree.flag = 1 is an integer and must be a boolean"),
        (
            {"ratio": "1"},
            "config_value",
            "tree.ratio = '1' is a string and must be a float; leave the quotes out",
        ),
        ({"ratio": False}, "config_value", "tree.ratio = false is a boolean"),
        ({"choice": "up"}, "config_value", "tree.choice = 'up' must be one of 'left', 'right'"),
        ({"choice": 1}, "config_value", "tree.choice = 1"),
        ({"pair": 0.5}, "config_value", "tree.pair = 0.5 .* must be an array of 2 values; write"),
        ({"pair": [0.5]}, "config_value", "tree.pair = .* must be an array of 2 values"),
        ({"pair": [0.5, "x"]}, "config_value", r"tree.pair\[1\] = 'x'"),
        ({"names": ["a", 2]}, "config_value", r"tree.names\[1\] = 2 .* must be a string"),
        ({"names": "ab"}, "config_value", "tree.names = 'ab' .* must be an array"),
        ({"limit": "x"}, "config_value", "tree.limit = 'x' is a string and must be an integer; write it so"),
        ({"count": {"a": [True]}}, "config_value", r"tree.count = { a = \[true\] } is a table"),
        ({"count": date(2026, 1, 2)}, "config_value", "tree.count = 2026-01-02 is a date and"),
        ({"leaf": 3}, "config_value", "tree.leaf = 3 .* must be a table"),
    ],
)
def test_refuses_what_does_not_match(table: dict[str, object], code: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as refusal:
        from_table(Tree, MINIMAL | table, "tree")
    assert refusal.value.code == code


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"leaf": LEAF}, r"'count' in section \[tree\] is missing"),
        ({"count": 3, "leaf": {}}, r"'text' in section \[tree.leaf\] is missing"),
        ({"count": 3}, r"'text' in section \[tree.leaf\] is missing"),
    ],
)
def test_refuses_a_table_without_a_required_key(table: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as refusal:
        from_table(Tree, table, "tree")
    assert refusal.value.code == "config_missing_key"


@pytest.mark.parametrize(("section", "name"), [("tree", "tree"), ("", "the run configuration")])
def test_refuses_what_is_no_table(section: str, name: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"^{name} = 3 .* must be a table") as refusal:
        from_table(Tree, 3, section)
    assert refusal.value.code == "config_value"


def test_names_the_top_of_the_file() -> None:
    with pytest.raises(
        InvalidInputError, match=r"^section 'leav' in the run configuration .* did you mean 'leaf'"
    ):
        from_table(Tree, MINIMAL | {"leav": {}}, "")
    with pytest.raises(InvalidInputError, match=r"^key 'leav' in the run configuration .*the keys are "):
        from_table(Tree, MINIMAL | {"leav": 3}, "")


def test_values_are_left_to_the_dataclass() -> None:
    assert math.isnan(from_table(Leaf, {"text": "x", "number": math.nan}, "leaf").number)


def test_what_is_refused_is_told_at_once_in_the_order_of_the_table() -> None:
    table = {"cuont": 3, "ratio": "1", "choice": "up", "leaf": {"text": 1, "nmber": 1.0}, "flga": True}
    with pytest.raises(InvalidInputError) as refusal:
        from_table(Tree, table, "tree")
    told = str(refusal.value).split("; also: ")
    assert [text.partition(";")[0].partition(" and must")[0] for text in told] == [
        "key 'cuont' in section [tree] is unknown",
        "key 'flga' in section [tree] is unknown",
        "tree.ratio = '1' is a string",
        "tree.choice = 'up' must be one of 'left', 'right'",
        "key 'nmber' in section [tree.leaf] is unknown",
        "tree.leaf.text = 1 is an integer",
    ]
    # As of the first.
    assert refusal.value.code == "config_unknown_key"


def test_all_missing_keys_of_a_section_are_named_unless_one_is_there_misspelt() -> None:
    with pytest.raises(InvalidInputError) as refusal:
        from_table(Tree, {}, "tree")
    assert str(refusal.value) == (
        "key 'count' in section [tree] is missing and has no default; set it; also: "
        "key 'text' in section [tree.leaf] is missing and has no default; set it"
    )
    with pytest.raises(InvalidInputError, match=r"^keys 'a', 'b' in section .* are missing .*; set them$"):
        from_table(Pair, {}, "pair")
    with pytest.raises(InvalidInputError, match=r"^key 'aa' in section .pair. is unknown; [^;]*$"):
        from_table(Pair, {"aa": 1}, "pair")
