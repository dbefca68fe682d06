"""The common style of all figures: colours, font, lines.

Colours are Okabe and Ito's ("Color Universal Design", 2008), which people with any kind of colour vision
can distinguish; each has one meaning in all figures. Amounts are shades of one colour.
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
# Most artists with tips; more are drawn as one, since each takes a millisecond.
MOST_TIPS = 500
IDLE = "#E6E7E9"
# Characters per inch of a figure's title, most of them no wider than digits.
_HEAD_CHARACTERS = 13
# Shades from few tokens to many.
FORWARDS = ("#BFDDF2", "#0072B2", "#00304D")
BACKWARDS = ("#F9DDB1", "#E08A00", "#6B3000")

_SETTINGS: Any = {
    "font.family": "DejaVu Sans",  # part of matplotlib: figures are the same on all machines
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
    "svg.hashsalt": "hydraulis",  # equal figures have equal bytes
}


# Height of a legend's row, as a share of the data's.
_LEGEND_ROOM = 0.16


def require_matplotlib() -> None:
    """Raise `HydraulisError` (code `extra_missing`) if matplotlib cannot be imported."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        message = f"figures need matplotlib ({error}); install it: pip install 'hydraulis[report]'"
        raise HydraulisError(message, code="extra_missing") from error


class Drawing:
    """A figure in the common style, and its panels.

    The style's settings apply inside `with drawing:` only; matplotlib's global settings are not changed.

    Args:
        width: Width in inches.
        height: Height in inches.
        rows: Relative heights of the rows of panels.
        columns: Relative widths of the columns of panels.

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
        """Set the figure's title; long text is wrapped."""
        lines = textwrap.wrap(text, int(_HEAD_CHARACTERS * self.figure.get_figwidth()))
        self.figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=9, color=FAINT)

    def tip(self, artist: Artist, text: str) -> None:
        """Add a text that viewers of the SVG show while the pointer rests on `artist`."""
        name = f"tip-{len(self._tips)}"
        artist.set_gid(name)
        self._tips[name] = text

    def render(self, kind: Kind) -> bytes:
        """Return the figure as a file, PNG with 200 dots per inch; equal figures have equal bytes."""
        import matplotlib as mpl

        dated: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
        file = io.BytesIO()
        with mpl.rc_context(_SETTINGS):
            self.figure.savefig(file, format=kind, dpi=200, metadata=dated)
        # The layout is kept for other kinds of files.
        self.figure.set_layout_engine("none")
        return self._with_tips(file.getvalue()) if kind == "svg" else file.getvalue()

    def _with_tips(self, svg: bytes) -> bytes:
        # Browsers show the title of an SVG element as a tip, without a script.
        def titled(group: re.Match[str]) -> str:
            return f"{group[0]}<title>{html.escape(self._tips[group[1]])}</title>"

        return re.sub(r'<g id="(tip-\d+)">', titled, svg.decode()).encode()

    def save(self, path: Path) -> None:
        """Write the figure in the format of the path's ending: .png, .svg or .pdf.

        Raises:
            InvalidInputError: The file cannot be written (code `file_unwritable`).
        """
        kind: Any = path.suffix.lower().removeprefix(".")
        with write_whole_file(path) as file:
            file.write(self.render(kind))


def legend(panel: Axes, columns: int) -> None:
    """Draw a legend in one row above the data, at the left, which a narrow screen shows first."""
    low, high = panel.get_ylim()
    panel.set_ylim(low, high + _LEGEND_ROOM * (high - low))
    panel.legend(loc="upper left", ncols=columns)


def steps(panel: Axes) -> None:
    """Format the x axis as numbers of steps or batches: integers with commas."""
    from matplotlib.ticker import MaxNLocator

    panel.xaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    thousands(panel, "x")


def thousands(panel: Axes, axis: Literal["x", "y"] = "y") -> None:
    """Format an axis's numbers with commas, without powers of ten."""
    from matplotlib.ticker import FuncFormatter

    formatted = panel.xaxis if axis == "x" else panel.yaxis
    formatted.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
