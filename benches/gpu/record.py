"""The figures of a measurement as text: tables for the terminal, and a page for benches/record."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

Figures = Mapping[str, Any]
_Column = tuple[str, Callable[[Mapping[str, Any]], str]]


def _number(name: str, pattern: str = "{:,.1f}", scale: float = 1.0) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: "-" if row[name] in (None, 0.0) else pattern.format(row[name] * scale)


def _text(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: str(row[name])


def _refusal(row: Mapping[str, Any]) -> str:
    return row["refusal"] or ""


_ATTENTION: tuple[_Column, ...] = (
    ("micro-batch", _text("micro_batch")),
    ("sequences", _text("sequences")),
    ("kernel", _text("kernel")),
    ("forward ms", _number("forward_ms", "{:.3f}")),
    ("both ms", _number("both_ms", "{:.3f}")),
    ("forward TFLOP/s", _number("forward_tflops")),
    ("both TFLOP/s", _number("both_tflops")),
    ("refusal", _refusal),
)
_STEPS: tuple[_Column, ...] = (
    ("step", _text("way")),
    ("ms", _number("step_ms")),
    ("tokens/s", _number("tokens_per_s", "{:,.0f}")),
    ("TFLOP/s", _number("tflops", "{:.1f}")),
    ("MFU", _number("mfu", "{:.1%}")),
    ("peak MiB", _number("memory_bytes", "{:,.0f}", 2**-20)),
    ("first loss", _number("first_loss", "{:.4f}")),
    ("refusal", _refusal),
)
_PIECES: tuple[_Column, ...] = (
    ("piece", _text("piece")),
    ("way", _text("way")),
    ("ms", _number("ms", "{:.3f}")),
    ("TFLOP/s", _number("tflops")),
    ("GB/s", _number("gigabytes_per_s", "{:,.0f}")),
    ("refusal", _refusal),
)
_PREDICTION: tuple[_Column, ...] = (
    ("steps", _text("steps")),
    ("median error of times", _number("median_time_error", "{:.1%}")),
    ("worst", _number("worst_time_error", "{:.1%}")),
    ("planned MiB", _number("planned_bytes", "{:,.0f}", 2**-20)),
    ("measured MiB", _number("held_bytes", "{:,.0f}", 2**-20)),
    ("tokens/s", _number("tokens_per_s", "{:,.0f}")),
    ("profile s", _number("profile_s")),
)
_KINDS: tuple[_Column, ...] = (
    ("kind", _text("kind")),
    ("kernels", _text("kernels")),
    ("ms", _number("ms")),
    ("times peak", _number("times_peak", "{:.2f}")),
)
_COLUMNS = {
    "attention": _ATTENTION,
    "kinds-1b": _KINDS,
    "kinds-8b": _KINDS,
    "profile": _PREDICTION,
    "rows": _PIECES,
    "collectives": _PIECES,
}
# The name of a part's rows where it is another one.
_ROWS = {"step-1b": "steps", "step-8b": "steps", "kinds-1b": "kinds", "kinds-8b": "kinds"}
_TITLES = {
    "attention": "Attention kernels",
    "step-1b": "A step of 1.1 billion parameters",
    "step-8b": "A step of 4 layers of Llama 3 8B",
    "kinds-1b": "Kinds of work in a step of 1.1 billion parameters",
    "kinds-8b": "Kinds of work in a step of 4 layers of Llama 3 8B",
    "profile": "Predicted by a profile of this device, and measured",
    "rows": "Pieces of work",
    "collectives": "Collectives of a tensor group",
}


def tables(figures: Figures) -> Iterable[tuple[str, list[list[str]]]]:
    """Yield the title and the rows of each table; the first row is the head."""
    for part, title in _TITLES.items():
        found = figures.get(part)
        if found is None:
            continue
        columns = _COLUMNS.get(part, _STEPS)
        rows = [found["profile"]] if part == "profile" else found[_ROWS.get(part, part)]
        yield title, [[name for name, _ in columns], *([value(row) for _, value in columns] for row in rows)]


def plain(figures: Figures) -> str:
    """Return the tables in columns."""
    text = ""
    for title, rows in tables(figures):
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = (
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
        )
        text += f"{title}\n" + "".join(f"{line.rstrip()}\n" for line in lines) + "\n"
    return text + "".join(f"{part}: not measured, {why}\n" for part, why in figures["failed"].items())


def page(figures: Figures) -> str:
    """Return the page of the record, in Markdown."""
    machine = figures["machine"]
    lines = [f"# {machine['date'][:10]}: one {machine['device']}", "", "```sh", figures["command"], "```", ""]
    lines += ["| | |", "|---|---|", *(f"| {name} | {_cell(value)} |" for name, value in machine.items())]
    for title, rows in tables(figures):
        head, *body = ("| " + " | ".join(map(_cell, row)) + " |" for row in rows)
        lines += ["", f"## {title}", "", head, "|" + "---|" * len(rows[0]), *body]
    failed = [f"- {part}: {_cell(why)}" for part, why in figures["failed"].items()]
    lines += ["", "## Not measured", "", *failed] if failed else []
    return "\n".join(lines) + "\n"


def write(folder: Path, figures: Figures) -> Path:
    """Write the page, under the date and the device's name.

    Returns:
        Path of the page. A second record of one day has a number.
    """
    device = re.sub(r"[^a-z0-9]+", "-", figures["machine"]["device"].lower()).strip("-")
    stem = f"{figures['machine']['date'][:10]}-{device}"
    path = next(
        path
        for number in range(1, 1000)
        if not (path := folder / f"{stem}{'' if number == 1 else f'-{number}'}.md").exists()
    )
    path.write_text(page(figures), encoding="utf-8")
    return path


def _cell(value: object) -> str:
    text = ", ".join(f"{key} {one}" for key, one in value.items()) if isinstance(value, dict) else str(value)
    return " ".join(text.split()).replace("|", "\\|")


def as_json(figures: Figures) -> str:
    """Return the figures for programs; those of the parts are at the top, for a part of its own."""
    merged = dict(figures)
    for part in _TITLES:
        merged |= figures.get(part) or {}
    return json.dumps(merged, indent=2) + "\n"
