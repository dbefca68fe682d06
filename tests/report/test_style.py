"""The style of all figures, and errors without matplotlib."""

import subprocess
import sys

import matplotlib as mpl
import pytest

from helpers import refused
from hydraulis.report import style
from hydraulis.report.style import Drawing


def test_the_callers_settings_are_not_changed() -> None:
    before = dict(mpl.rcParams)
    with Drawing(2, 1) as drawing:
        assert mpl.rcParams["font.size"] == 9
        drawing.panels[0].plot([1, 2])
    assert drawing.render("png").startswith(b"\x89PNG")
    assert dict(mpl.rcParams) == before


def test_tips_are_text_and_not_markup() -> None:
    with Drawing(2, 1, rows=(1, 2)) as drawing:
        assert len(drawing.panels) == 2
        (line,) = drawing.panels[0].plot([1, 2])
        drawing.tip(line, "a < b & c")
    assert "<title>a &lt; b &amp; c</title>" in drawing.render("svg").decode()


def test_numbers_have_commas() -> None:
    with Drawing(2, 1) as drawing:
        drawing.panels[0].plot([0, 20_000])
        style.thousands(drawing.panels[0])
        drawing.render("svg")
    assert "20,000" in [label.get_text() for label in drawing.panels[0].get_yticklabels()]


def test_steps_are_whole_numbers() -> None:
    with Drawing(4, 1) as drawing:
        drawing.panels[0].plot([1_000, 1_002], [0, 1])
        style.steps(drawing.panels[0])
        drawing.render("svg")
    ticks = [label.get_text() for label in drawing.panels[0].get_xticklabels()]
    assert {"1,000", "1,001", "1,002"} <= set(ticks)
    assert not any("." in text for text in ticks)


def test_a_long_title_is_not_cut() -> None:
    words = " ".join(f"{number:08}" for number in range(40))
    with Drawing(8, 3) as drawing:
        drawing.panels[0].plot([1, 2])
        drawing.head(words)
    drawing.figure.draw_without_rendering()
    head = drawing.figure._suptitle  # type: ignore[attr-defined]
    assert head.get_text().split() == words.split()
    assert 0 <= head.get_window_extent().x0 < head.get_window_extent().x1 < drawing.figure.bbox.x1
    assert head.get_window_extent().y0 > drawing.panels[0].get_window_extent().y1


def test_colours_differ() -> None:
    assert len(set(style.CATEGORIES)) == len(style.CATEGORIES) == 8


def test_missing_matplotlib_is_reported_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with refused("extra_missing", "hydraulis[report]"):
        Drawing(2, 1)


def test_importing_the_figures_does_not_import_matplotlib() -> None:
    code = (
        "import pkgutil as p, sys, importlib, hydraulis.report as r; "
        "[importlib.import_module(f'hydraulis.report.{m.name}') for m in p.iter_modules(r.__path__)]; "
        "print(len(list(p.iter_modules(r.__path__))), *(n in sys.modules for n in ('matplotlib', 'torch')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count, *heavy = done.stdout.split()
    assert int(count) >= 3
    assert heavy == ["False", "False"]
