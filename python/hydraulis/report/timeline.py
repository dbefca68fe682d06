"""Figure of one iteration: transfers, and each stage's forwards, backwards and waiting, in lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydraulis.report import style
from hydraulis.report.style import Drawing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.patches import Rectangle

    from hydraulis._core import Plan, Replica, Span, TransferSpan

_LANE = 0.2  # height in inches; less with more than _MANY lanes
_MANY = 60
_GAP = 0.45  # between replicas, as a share of a lane
_MOST_NUMBERS = 400


def timeline_figure(
    plan: Plan,
    timelines: Mapping[str, Sequence[Sequence[Span]]],
    title: str,
    transfer_spans: Sequence[TransferSpan] = (),
) -> Drawing:
    """Draw the timelines of a plan's replicas, with a lane for each stage.

    Forwards are blue and backwards orange, in darker shades for more tokens.

    Args:
        plan: Plan of the iteration.
        timelines: Spans of each replica, by name of the timeline, such as `planned`.
        title: Description of the iteration.
        transfer_spans: Transfer spans of the first timeline, with a lane for parameters and one
            for gradients.

    Raises:
        HydraulisError: matplotlib is missing (code `extra_missing`).
    """
    moved = [span for span in transfer_spans if span.end_ms > span.start_ms]
    lanes = sum(len(replica.stages) + _GAP for replica in plan.replicas) + (2 + _GAP if moved else 0)
    height = _LANE * min(1.0, max(0.45, _MANY / (lanes * len(timelines))))
    drawing = Drawing(9.0, 1.3 + len(timelines) * (0.45 + height * lanes), rows=[1] * len(timelines))
    with drawing:
        contents = [[int(plan.lengths[ids].sum()) for ids in one.micro_batches] for one in plan.replicas]
        shades = _Shades(max((tokens for of_replica in contents for tokens in of_replica), default=1))
        ends = [max((span.end_ms for spans in of for span in spans), default=0) for of in timelines.values()]
        ends[0] = max([ends[0], *(span.end_ms for span in moved)])
        rows = zip(timelines.items(), drawing.panels, ends, strict=True)
        for place, ((name, of_replicas), panel, end) in enumerate(rows):
            panel.set_title(f"{name}: {end:,.0f} ms")
            lanes_of = _Lanes(drawing, panel, plan, contents, shades)
            lanes_of.draw(of_replicas, end, moved if place == 0 else [])
            panel.set_xlim(0, 1.005 * max(ends))
            panel.tick_params(labelbottom=panel is drawing.panels[-1])
            panel.tick_params(axis="y", labelsize=min(7.5, 40 * height))
            style.thousands(panel, "x")
        numbers = "; numbers are those of micro-batches" if lanes_of.numbered else ""
        drawing.panels[-1].set_xlabel(f"ms since the start of the iteration{numbers}")
        _legend(drawing, shades, with_transfers=bool(moved))
        drawing.head(title)
    return drawing


class _Shades:
    """Colours of micro-batches by their number of tokens."""

    def __init__(self, most: int) -> None:
        from matplotlib.colors import LinearSegmentedColormap

        self.most = most
        self._maps: dict[bool, Colormap] = {
            forward: LinearSegmentedColormap.from_list("tokens", colours)
            for forward, colours in ((True, style.FORWARDS), (False, style.BACKWARDS))
        }

    def of(self, tokens: int, *, forward: bool) -> tuple[float, float, float, float]:
        return self._maps[forward](tokens / self.most)

    def ink(self, tokens: int, *, forward: bool) -> str:
        """Return a readable text colour."""
        red, green, blue, _ = self.of(tokens, forward=forward)
        return style.INK if 0.3 * red + 0.6 * green + 0.1 * blue > 0.5 else "white"


class _Lanes:
    """The lanes of one panel, drawn from the top."""

    def __init__(
        self, drawing: Drawing, panel: Axes, plan: Plan, contents: Sequence[Sequence[int]], shades: _Shades
    ) -> None:
        self._drawing = drawing
        self._panel = panel
        self._plan = plan
        self._contents = contents
        self._shades = shades
        self.numbered = sum(len(of_replica) for of_replica in contents) <= _MOST_NUMBERS

    def draw(
        self, timelines: Sequence[Sequence[Span]], end: float, transfer_spans: Sequence[TransferSpan]
    ) -> None:
        places: dict[float, str] = {}
        lane = 0.0
        for kind in ("parameters", "gradients") if transfer_spans else ():
            self._transfers(lane, [span for span in transfer_spans if span.kind == kind], end)
            places[lane] = f"transfer of {kind}"
            lane += 1
        lane += _GAP if transfer_spans else 0
        for number, (replica, spans) in enumerate(zip(self._plan.replicas, timelines, strict=True)):
            for stage in range(len(replica.stages)):
                self._lane(lane, number, [span for span in spans if span.stage == stage], end)
                places[lane] = _label(replica, stage)
                lane += 1
            lane += _GAP
        self._panel.axvline(end, color=style.INK, linewidth=0.8, linestyle=(0, (4, 2)))
        self._panel.set_ylim(lane - _GAP - 0.4, -0.6)
        self._panel.set_yticks(list(places), list(places.values()))
        self._panel.grid(visible=False)
        self._panel.spines["left"].set_visible(False)

    def _transfers(self, lane: float, transfer_spans: Sequence[TransferSpan], end: float) -> None:
        from matplotlib.patches import Rectangle as Bar

        for span in transfer_spans:
            width = span.end_ms - span.start_ms
            bar = Bar((span.start_ms, lane - 0.44), width, 0.88, facecolor=style.ACCENT)
            bar.set(edgecolor="white", linewidth=min(0.5, 150 * width / end))
            self._add(bar)
            self._drawing.tip(
                bar,
                f"{span.kind} of layer group {span.layer_group}: {width:,.1f} ms "
                f"from {span.start_ms:,.1f} ms",
            )

    def _lane(self, lane: float, replica: int, spans: Sequence[Span], end: float) -> None:
        from matplotlib.patches import Rectangle as Bar

        idle = Bar((0, lane - 0.44), end, 0.88, color=style.IDLE, linewidth=0)
        self._add(idle)
        self._drawing.tip(idle, "waiting")
        for span in spans:
            tokens = self._contents[replica][span.micro_batch]
            width = span.end_ms - span.start_ms
            colour = self._shades.of(tokens, forward=span.forward)
            bar = Bar((span.start_ms, lane - 0.44), width, 0.88, facecolor=colour)
            bar.set(edgecolor="white", linewidth=min(0.5, 150 * width / end))
            self._add(bar)
            sequences = len(self._plan.replicas[replica].micro_batches[span.micro_batch])
            self._drawing.tip(
                bar,
                f"{'forward' if span.forward else 'backward'} of micro-batch {span.micro_batch}: {tokens:,} "
                f"tokens in {sequences} sequences, {width:,.1f} ms from {span.start_ms:,.1f} ms",
            )
            if self.numbered and width > 0.025 * end:
                middle = (span.start_ms + span.end_ms) / 2
                ink = self._shades.ink(tokens, forward=span.forward)
                number = self._panel.text(middle, lane, str(span.micro_batch), fontsize=6, color=ink)
                number.set(ha="center", va="center_baseline", in_layout=False)

    def _add(self, bar: Rectangle) -> None:
        # Bars stay inside the panel, and laying out thousands of them takes seconds.
        bar.set_in_layout(False)
        self._panel.add_artist(bar)


def _label(replica: Replica, stage: int) -> str:
    ranks = replica.stages[stage]
    place = f"ranks {ranks[0]}–{ranks[-1]}" if len(ranks) > 1 else f"rank {ranks[0]}"
    return (
        f"{replica.scheme} stage {stage}, {place}"
        if len(replica.stages) > 1
        else f"{replica.scheme}, {place}"
    )


def _legend(drawing: Drawing, shades: _Shades, *, with_transfers: bool) -> None:
    """Draw the legend of colours next to the title of the first panel."""
    from matplotlib.patches import Patch

    kinds = (("forward", True), ("backward", False))
    labels = [text for name, _ in kinds for text in (f"{name} of few tokens", f"of {shades.most:,}")]
    colours = [shades.of(tokens, forward=forward) for _, forward in kinds for tokens in (0, shades.most)]
    handles = [Patch(color=colour, label=label) for colour, label in zip(colours, labels, strict=True)]
    handles.append(Patch(color=style.IDLE, label="waiting"))
    if with_transfers:
        handles.append(Patch(color=style.ACCENT, label="transfers"))
    drawing.panels[0].legend(
        handles=handles,
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=len(handles),
        borderaxespad=0.4,
        handlelength=1,
        columnspacing=1,
        fontsize=7,
    )
