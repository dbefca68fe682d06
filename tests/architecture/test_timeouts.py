"""Every process group has a timeout of its own: without one a rank that died is waited for half an hour."""

import ast
from collections.abc import Iterator

from helpers import ROOT, at_least

MAKERS = ("new_group", "init_process_group", "split_group", "new_subgroups", "init_device_mesh")


def calls_that_make_groups(source: str) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", None))
            if name in MAKERS:
                yield node


def states_a_timeout(call: ast.Call) -> bool:
    return any(keyword.arg == "timeout" for keyword in call.keywords)


def test_every_group_is_made_with_a_timeout() -> None:
    paths = [*(ROOT / "python").rglob("*.py"), *(ROOT / "benches").rglob("*.py")]
    calls = [
        (path, call) for path in at_least(50, paths) for call in calls_that_make_groups(path.read_text())
    ]
    for path, call in at_least(3, calls):
        assert states_a_timeout(call), f"{path}, line {call.lineno}"


def test_a_group_without_a_timeout_is_found() -> None:
    source = "dist.new_group(ranks)\nnew_group(ranks, timeout=wait)\nother(ranks)"
    assert [states_a_timeout(call) for call in calls_that_make_groups(source)] == [False, True]
