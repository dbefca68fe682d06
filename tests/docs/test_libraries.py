"""docs/design/libraries.md names every direct dependency, its extras, and nothing else."""

import re
import tomllib
from typing import Any

from helpers import ROOT, at_least

PAGE = (ROOT / "docs/design/libraries.md").read_text(encoding="utf-8")
RUST, PYTHON = PAGE.split("\n## Python\n")


def rows(section: str) -> list[list[str]]:
    lines = at_least(8, [line for line in section.splitlines() if line.startswith("| [")])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def named(cell: str) -> list[str]:
    return at_least(1, re.findall(r"\[([\w-]+)\]\(", cell))


def manifest(path: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / path).read_text(encoding="utf-8"))


def test_every_rust_dependency_has_a_row() -> None:
    wanted = manifest("Cargo.toml")["workspace"]["dependencies"]
    ours = {name for name in wanted if name.startswith("hydraulis")}
    assert sorted(name for row in rows(RUST) for name in named(row[0])) == sorted(set(wanted) - ours)


def test_every_python_dependency_has_a_row_with_its_extras() -> None:
    project = manifest("pyproject.toml")["project"]
    extras: dict[str, set[str]] = {re.split(r"[<>=]", one)[0]: set() for one in project["dependencies"]}
    for extra, requirements in project["optional-dependencies"].items():
        for one in requirements:
            extras.setdefault(re.split(r"[<>=]", one)[0], set()).add(extra)
    at_least(15, extras)
    found = {name: set(re.findall(r"`(\w+)`", row[1])) for row in rows(PYTHON) for name in named(row[0])}
    assert found == extras
