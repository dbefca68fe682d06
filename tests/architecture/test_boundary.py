"""The rules of the native module: one door out of the GIL, everything exported is typed and described."""

import ast
import inspect

import pytest

import hydraulis
from helpers import ROOT, at_least
from hydraulis import _core

STUB = ast.parse((ROOT / "python/hydraulis/_core.pyi").read_text(encoding="utf-8"))
BINDING = ROOT / "crates/hydraulis-py/src"


def stubbed() -> dict[str, ast.AST]:
    return {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}


def constants() -> list[str]:
    return [ast.unparse(node.target) for node in STUB.body if isinstance(node, ast.AnnAssign)]


def public_members(kind: type) -> list[str]:
    return [name for name in vars(kind) if not name.startswith("_")]


def test_the_gil_has_one_door() -> None:
    files = at_least(8, BINDING.rglob("*.rs"))
    doors = [file.name for file in files for _ in range(file.read_text(encoding="utf-8").count(".detach("))]
    assert doors == ["gil.rs"]


def test_every_native_class_is_frozen() -> None:
    text = "".join(file.read_text(encoding="utf-8") for file in at_least(8, BINDING.rglob("*.rs")))
    classes = at_least(15, [line for line in text.splitlines() if line.startswith("#[pyclass")])
    assert [line for line in classes if "frozen" not in line] == []


def test_every_exported_name_is_in_the_stub() -> None:
    exported = at_least(20, [name for name in vars(_core) if not name.startswith("_")])
    assert sorted(exported) == sorted([*stubbed(), *constants()])
    assert sorted(exported) == sorted(_core.__all__)


@pytest.mark.parametrize("name", at_least(20, _core.__all__))
def test_every_exported_name_has_a_docstring(name: str) -> None:
    exported = getattr(_core, name)
    assert inspect.getdoc(exported)
    if inspect.isclass(exported):
        described = {member: inspect.getdoc(getattr(exported, member)) for member in public_members(exported)}
        # A plain field bears its meaning in its name; whatever computes something says what.
        assert [
            member for member, text in described.items() if not text and callable(getattr(exported, member))
        ] == []


def test_the_package_exports_the_names_in_all() -> None:
    for name in at_least(8, hydraulis.__all__):
        assert getattr(hydraulis, name).__doc__
