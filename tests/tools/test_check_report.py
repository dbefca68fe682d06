"""The check in a browser, with browsers that are none: what it needs, and that it can fail."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from matplotlib.image import imsave

from helpers import ROOT
from hydraulis.report.style import MEASURED, PLANNED

WHITE = "#FFFFFF"
PAGE = '<section id="loss"><svg><path d=""/></svg></section><section id="timeline"><p>soon</p></section>'
BROWSER = """#!/bin/sh
for word in "$@"; do
  case "$word" in --screenshot=*) cp "{picture}" "${{word#--screenshot=}}"; exit;; esac
done
echo '{page}'
echo '{console}' >&2
"""


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_report", ROOT / "tools/check_report.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def browser(folder: Path, colours: list[str], console: str = "") -> str:
    pixels = [[int(colour[at : at + 2], 16) for at in (1, 3, 5)] for colour in colours]
    imsave(folder / "painted.png", np.array([pixels], dtype=np.uint8))
    path = folder / "chromium"
    path.write_text(BROWSER.format(picture=folder / "painted.png", page=PAGE, console=console))
    path.chmod(0o755)
    return str(path)


def test_without_a_browser_the_tool_names_the_supported_ones(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tool.main([]) == 2
    assert capsys.readouterr().err.startswith("no browser is on PATH: install one of chromium, ")


@pytest.mark.parametrize(
    ("names", "colours", "console", "faults"),
    [
        (["loss"], [PLANNED, MEASURED], "", []),
        (["loss", "timeline", "lengths"], [PLANNED, MEASURED], "", ["figure timeline", "figure lengths"]),
        (["loss"], [WHITE, MEASURED], "", [f"nothing in the picture has the colour {PLANNED}"]),
        (["loss"], [PLANNED, MEASURED], "CONSOLE: refused to load", ["the console says: CONSOLE: refused"]),
    ],
)
def test_each_fault_of_a_page_is_reported(
    tool: ModuleType, tmp_path: Path, names: list[str], colours: list[str], console: str, faults: list[str]
) -> None:
    page = tmp_path / "report.html"
    page.write_text(PAGE)
    found = list(tool.look(browser(tmp_path, colours, console), page, names, tmp_path))
    assert len(found) == len(faults)
    for one, expected in zip(found, faults, strict=True):
        assert one.startswith(expected)


def test_a_missing_picture_is_a_fault(tool: ModuleType, tmp_path: Path) -> None:
    assert list(tool.unpainted(tmp_path / "page.png")) == ["it made no picture"]


def test_without_a_run_the_tool_uses_that_of_the_tests(tool: ModuleType, tmp_path: Path) -> None:
    assert {path.name for path in tool.made_up(tmp_path / "run").iterdir()} >= {"metrics.jsonl", "trace.json"}
    assert "report.made_up_run" in sys.modules
