"""The one look of all figures: colours, font, lines.

Colours are Okabe and Ito's ("Color Universal Design", 2008), which people with any kind of colour vision
tell apart; each has one meaning in all figures. Amounts are shades of one of them.
"""

from __future__ import annotations

import html
import io
import re
import textwrap
from typing import TYPE_CHECKING, Any, Literal, Self

from hydraulis.errors import HydraulisError
from hydraulis.files import write_whole_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Kind = Literal["png", "svg", "pdf"]

PLANNED = "#0072B2"
MEASURED = "#D55E00"
STATIC = "#7F7F7F"
ACCENT = "#009E73"
CATEGORIES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#4D4D4D")
INK = "#222222"
FAINT = "#8A8A8A"
GRID = "#E6E6E6"
# More artists than these have no tips, and are drawn together: each by itself takes a millisecond.
MOST_TIPS = 500
IDLE = "#E6E7E9"
# In an inch of a figure's head, where most are no wider than digits.
_HEAD_CHARACTERS = 13
# From few tokens to many.
FORWARDS = ("#BFDDF2", "#0072B2", "#00304D")
BACKWARDS = ("#F9DDB1", "#E08A00", "#6B3000")

_SETTINGS: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so figures are the same everywhere
    "font.size": 9.0,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.labelsize": 9.0,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8.0,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "ytick.major.size": 0.0,
    "lines.linewidth": 1.4,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.fonttype": "path",
    "svg.hashsalt": "hydraulis",  # the same figure is the same bytes
}


def require_matplotlib() -> None:
    """Raise `HydraulisError` (code `extra_missing`) where figures cannot be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        message = f"figures need matplotlib ({error}); install it: pip install 'hydraulis[report]'"
        raise HydraulisError(message, code="extra_missing") from error


class Drawing:
    """A figure in the style, and its panels.

    Drawing happens inside `with drawing:`, where the style's settings hold; the caller's own are left alone.

    Args:
        width: in inches.
        height: in inches.
        rows: relative heights of the panels below each other.
        columns: relative widths of the panels beside each other.

    Raises:
        HydraulisError: matplotlib is missing (code `extra_missing`).
    """

    def __init__(
        self, width: float, height: float, *, rows: Sequence[float] = (1,), columns: Sequence[float] = (1,)
    ) -> None:
        require_matplotlib()
        import matplotlib as mpl
        from matplotlib.figure import Figure as NewFigure

        self._settings = mpl.rc_context(_SETTINGS)
        self._tips: dict[str, str] = {}
        with mpl.rc_context(_SETTINGS):
            self.figure: Figure = NewFigure(figsize=(width, height), layout="constrained")
            grid = self.figure.subplots(
                len(rows), len(columns), squeeze=False, height_ratios=rows, width_ratios=columns
            )
        self.panels: list[Axes] = list(grid.flat)

    def __enter__(self) -> Self:
        self._settings.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._settings.__exit__(None, None, None)

    def head(self, text: str) -> None:
        """Write above all panels what they are of; what is too long for a line goes on below it."""
        lines = textwrap.wrap(text, int(_HEAD_CHARACTERS * self.figure.get_figwidth()))
        self.figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=9, color=FAINT)

    def tip(self, artist: Artist, text: str) -> None:
        """Let a viewer of the SVG show `text` while the pointer rests on `artist`."""
        name = f"tip-{len(self._tips)}"
        artist.set_gid(name)
        self._tips[name] = text

    def render(self, kind: Kind) -> bytes:
        """Return the figure's file: a PNG of 200 dots an inch, or vectors; the same bytes each time."""
        import matplotlib as mpl

        dated: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
        file = io.BytesIO()
        with mpl.rc_context(_SETTINGS):
            self.figure.savefig(file, format=kind, dpi=200, metadata=dated)
        # What was laid out once stays where it is, and need not be laid out for another kind.
        self.figure.set_layout_engine("none")
        return self._with_tips(file.getvalue()) if kind == "svg" else file.getvalue()

    def _with_tips(self, svg: bytes) -> bytes:
        # A title inside an element is what browsers show of it, without any script.
        def titled(group: re.Match[str]) -> str:
            return f"{group[0]}<title>{html.escape(self._tips[group[1]])}</title>"

        return re.sub(r'<g id="(tip-\d+)">', titled, svg.decode()).encode()

    def save(self, path: Path) -> None:
        """Write the figure as what the path's ending says: .png, .svg or .pdf.

        Raises:
            InvalidInputError: it cannot be written (code `file_unwritable`).
        """
        kind: Any = path.suffix.lower().removeprefix(".")
        with write_whole_file(path) as file:
            file.write(self.render(kind))


def steps(panel: Axes) -> None:
    """Write the numbers of steps or batches below a panel: whole ones, with commas."""
    from matplotlib.ticker import MaxNLocator

    panel.xaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    thousands(panel, "x")


def thousands(panel: Axes, axis: Literal["x", "y"] = "y") -> None:
    """Write an axis's numbers with commas, none in powers of ten."""
    from matplotlib.ticker import FuncFormatter

    which = panel.xaxis if axis == "x" else panel.yaxis
    which.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
