"""The report of a run: one HTML page that includes its figures and loads nothing."""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from hydraulis.data.analysis import Analysis, compute_length_statistics
from hydraulis.progress import ignore_progress
from hydraulis.report.data import data_figure
from hydraulis.report.imbalance import Balance, balances, comparable, imbalance_figure
from hydraulis.report.loss import loss_figure
from hydraulis.report.prediction import has_measured, prediction_figure
from hydraulis.report.slowness import has_slow, slowness_figure
from hydraulis.report.strategies import strategies_figure
from hydraulis.report.timeline import timeline_figure
from hydraulis.report.training import training_figure
from hydraulis.runtime.records.evaluation import of_newest_data
from hydraulis.runtime.records.totals import Totals
from hydraulis.text.values import escape_unprintable, format_count, format_percent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hydraulis.progress import ProgressCallback
    from hydraulis.report.run import Run, TracedStep
    from hydraulis.report.style import Drawing
    from hydraulis.runtime.records.samples import SampledText

    # Name, heading, caption, and drawing function.
    _Figure = tuple[str, str, str, Callable[[Run, Sequence[Balance]], Drawing]]

# The page may load nothing; its styles and pictures are part of it.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_STYLE = """
body { margin: 0 auto; max-width: 60rem; padding: 2rem 1.2rem 4rem; color: #222; background: #fff;
  font: 16px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.6rem 0 0.2rem; }
p { margin: 0.2rem 0 0.8rem; color: #555; max-width: 52rem; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: 0.8rem 1.4rem;
  margin: 1.4rem 0 0; }
dl div { border-top: 2px solid #0072B2; padding-top: 0.35rem; }
dt { color: #555; font-size: 0.85rem; }
dd { margin: 0; font-size: 1.15rem; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
figure { margin: 0; overflow-x: auto; }
svg { display: block; width: 100%; min-width: 34rem; height: auto; }
table { border-collapse: collapse; font-size: 0.9rem; margin: 0.2rem 0 0.8rem; }
th { font-weight: normal; text-align: left; color: #555; padding: 0.1rem 1.4rem 0.1rem 0; }
td { font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
td.text { white-space: pre-wrap; }
summary { cursor: pointer; }
svg [id*="tip-"]:hover { opacity: 0.7; }
@media print { body { max-width: none; padding: 0; } figure { break-inside: avoid; } }
""".strip()


@dataclass(frozen=True, slots=True)
class Section:
    """A figure of the report.

    Attributes:
        name: Name of the figure's file.
        heading: Heading above the figure.
        caption: Explanation of the figure.
        drawing: The figure.
    """

    name: str
    heading: str
    caption: str
    drawing: Drawing


def sections(run: Run, found: Sequence[Balance], progress: ProgressCallback) -> Iterator[Section]:
    """Draw the figures of a run, one at a time, in the page's order.

    Args:
        run: Run to draw.
        found: Balances of the run, as `balances` returns them.
        progress: Callback before each figure, with the activity and its progress.

    Yields:
        Each figure with its heading and caption.

    Raises:
        HydraulisError: matplotlib is missing (code `extra_missing`).
    """
    drawn = [_data(run.analysis)] if run.analysis is not None else []
    drawn += [_LENGTHS] if run.plans else []
    drawn += _OF_EVERY_RUN
    drawn += [_PREDICTION] if has_measured(run.metrics) else []
    drawn += [_SLOWNESS] if has_slow(run.metrics) else []
    drawn += [_imbalance(len(run.plans) - len(comparable(run)))] if found else []
    drawn += [_timeline(run.traced)] if run.traced is not None else []
    for done, (name, heading, caption, draw) in enumerate(drawn):
        progress("drawing figures", done, len(drawn))
        yield Section(name, heading, caption, draw(run, found))


def _trained(run: Run) -> Analysis:
    """Analyse the lengths of all trained sequences."""
    targets = np.concatenate([plan.targets for plan in run.plans])
    return Analysis(lengths=compute_length_statistics(run.lengths, targets), batches=None)


def _data(analysis: Analysis) -> _Figure:
    caption = (
        "Shares of sequences, tokens and attention by length, and the imbalance of plain data parallelism."
    )
    why = None if analysis.batches is None else analysis.batches.replica_limit
    if why is not None:
        caption += f" Batches are not assigned to more replicas, because {why}."
    return "data", "The data set", caption, lambda _run, _found: data_figure(analysis)


def _timeline(traced: TracedStep) -> _Figure:
    title = (
        f"step {traced.step}, {traced.plan.strategy}: {format_count(len(traced.plan.lengths), 'sequence')}"
    )
    return (
        "timeline",
        f"Step {traced.step}, stage by stage",
        "The same instruction lists with predicted and measured times. Rest the pointer on a bar for "
        "details.",
        lambda _run, _found: timeline_figure(traced.plan, traced.timelines, title),
    )


def _imbalance(left_out: int) -> _Figure:
    caption = (
        "Predicted end of each replica, as a dot. Replicas wait from their end to the last one of the step."
    )
    if left_out:
        caption += (
            f" Not compared, in grey: {format_count(left_out, 'step')} on other ranks, on ranks of other "
            "rates, with slow links, with another profile, planner.link or planner.memory, or under schemes "
            "that the profile lacks."
        )
    return "imbalance", "Balance of the replicas", caption, lambda _, found: imbalance_figure(found)


_LENGTHS: _Figure = (
    "lengths",
    "Trained lengths",
    "Shares of all trained sequences, their tokens and their attention, by length.",
    lambda run, _: data_figure(_trained(run)),
)
_PREDICTION: _Figure = (
    "prediction",
    "Predicted and measured",
    "Computation of the slowest replica, predicted by the profile and measured in the run.",
    lambda run, _: prediction_figure(run.metrics),
)
_SLOWNESS: _Figure = (
    "slowness",
    "Slow ranks and links",
    "Computation of slow ranks relative to the others, and transfers of nodes with slow links relative to "
    "the usual ones, as the plan of each step counts with them.",
    lambda run, _: slowness_figure(run.metrics),
)
_OF_EVERY_RUN: tuple[_Figure, ...] = (
    (
        "loss",
        "Loss",
        "Mean over all target tokens of each global batch, and of held-out data where the run evaluates; "
        "dotted on earlier held-out data.",
        lambda run, _: loss_figure(run.metrics, run.evaluations),
    ),
    (
        "training",
        "Step by step",
        "Learning rate, gradient, speed, and the time of transfers that computation does not overlap.",
        lambda run, _: training_figure(run.metrics),
    ),
    (
        "strategies",
        "Strategies",
        "Each step runs under the strategy with the shortest planned iteration for its lengths.",
        lambda run, _: strategies_figure(run.metrics),
    ),
)


def numbers(run: Run, found: Sequence[Balance]) -> dict[str, float]:
    """Summarise the run in numbers.

    Returns:
        `steps` as the number of recorded steps, `num_steps` as that of the whole run, `tokens`, `first_loss`,
        `last_loss`, the number of `strategies`, and `tokens_per_s`. Where known also `mfu`, `median_error` of
        planned times, `memory_error` as the median over ranks and steps, `moved_share` as the share of
        sequences that a lookahead moved, `first_evaluation` and `last_evaluation` of the held-out loss on
        the newest held-out data, `left_out` as the number of steps that are not `comparable`,
        `static_ratio` as the planned time of the best static strategy relative to the run's plans, and
        `ranks_per_device` if ranks shared devices.
    """
    metrics, totals = run.metrics, Totals.of(run.metrics)
    summed: dict[str, float] = {
        "steps": len(metrics),
        "num_steps": run.num_steps,
        "tokens": totals.tokens,
        "first_loss": metrics[0].loss,
        "last_loss": metrics[-1].loss,
        "strategies": len(totals.strategies),
        "tokens_per_s": totals.tokens_per_s,
    }
    if totals.median_error is not None:
        summed["median_error"] = totals.median_error
    if totals.memory is not None:
        summed["memory_error"] = totals.memory.median_error
    if totals.moved:
        summed["moved_share"] = totals.moved / totals.sequences
    if totals.ranks_per_device > 1:
        summed["ranks_per_device"] = totals.ranks_per_device
    if totals.mfu is not None:
        summed["mfu"] = totals.mfu
    if run.evaluations:
        compared = of_newest_data(run.evaluations)
        summed["first_evaluation"] = compared[0].loss
        summed["last_evaluation"] = compared[-1].loss
    left_out = len(run.plans) - len(comparable(run))
    if left_out:
        summed["left_out"] = left_out
    if len(found) > 1:
        summed["static_ratio"] = found[0].mean_step_ms / found[-1].mean_step_ms
    return summed


def page(run: Run, shown: Sequence[Section], summed: dict[str, float]) -> str:
    """Return the page.

    Args:
        run: Run of the report.
        shown: Figures of the run.
        summed: Numbers of the run, as `numbers` returns them.
    """
    name = html.escape(escape_unprintable(run.path.resolve().name))
    facts = "".join(f"<div><dt>{label}</dt><dd>{value}</dd></div>" for label, value in _facts(run, summed))
    body = "".join(
        f'<section id="{one.name}"><h2>{html.escape(one.heading)}</h2><p>{html.escape(one.caption)}</p>'
        f"<figure>{inline_svg(one)}</figure></section>\n"
        for one in shown
    )
    notes = "".join(f"<p>{html.escape(note)}</p>\n" for note in run.notes)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{name}: a run of Hydraulis</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{name}</h1><p>{html.escape(run.profile.name)} on {_ranks(run)}</p>"
        f"<dl>{facts}</dl>\n{notes}{body}{_samples(run)}{_configuration(run)}</body></html>\n"
    )


def _samples(run: Run) -> str:
    """Return the sampled texts as a section, the newest open; empty without any."""
    if not run.samples:
        return ""
    tables = "".join(
        f"<details{' open' if one is run.samples[-1] else ''}><summary>after step {one.step:,}</summary>"
        f"<table>{''.join(map(_continued, one.texts))}</table></details>\n"
        for one in run.samples
    )
    caption = "Prompts, and the continuations of the model at that step."
    return f'<section id="samples"><h2>Samples of text</h2><p>{caption}</p>{tables}</section>\n'


def _continued(sampled: SampledText) -> str:
    prompt, text = html.escape(sampled.prompt), html.escape(sampled.text)
    return f'<tr><th>{prompt}</th><td class="text">{text}</td></tr>'


def _configuration(run: Run) -> str:
    """Return the effective configuration as a section with a table for each of its own."""
    tables = "".join(
        f"<details><summary>{html.escape(name)}</summary><table>{_rows(table)}</table></details>\n"
        for name, table in run.config.items()
    )
    caption = "Every value of the last start; <code>hydraulis config RUN.toml</code> also shows its origin."
    return f'<section id="configuration"><h2>Configuration</h2><p>{caption}</p>{tables}</section>\n'


def _rows(table: Mapping[str, Any]) -> str:
    return "".join(
        f"<tr><th>{html.escape(key)}</th><td>{html.escape(_shown(value))}</td></tr>"
        for key, value in table.items()
    )


def _shown(value: object) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def _ranks(run: Run) -> str:
    """Return the number of ranks; several numbers if the run was resumed with others."""
    numbers_of_ranks = [str(gpus) for gpus, _ in groupby(len(one.rank_peak_bytes) for one in run.metrics)]
    return f"{', then '.join(numbers_of_ranks)} ranks"


def _compared_steps(run: Run) -> str:
    """Describe the compared steps; empty if these are all steps."""
    places, steps = comparable(run), len(run.plans)
    if len(places) == steps:
        return ""
    are_last = places[0] == steps - len(places)
    return f", of the last {len(places):,} steps" if are_last else f", of {len(places):,} of the steps"


def _steps(summed: dict[str, float]) -> str:
    """Return the number of recorded steps, with the run's number if it is unfinished."""
    steps, num_steps = summed["steps"], summed["num_steps"]
    return f"{steps:,} of {num_steps:,}" if steps < num_steps else f"{steps:,}"


def _facts(run: Run, summed: dict[str, float]) -> list[tuple[str, str]]:
    facts = [
        ("steps", _steps(summed)),
        ("tokens", f"{summed['tokens']:,}"),
        ("loss, nats a token", f"{summed['first_loss']:.3f} → {summed['last_loss']:.3f}"),
        ("tokens a second", f"{summed['tokens_per_s']:,.0f}"),
        ("strategies used", f"{summed['strategies']:,}"),
    ]
    if "median_error" in summed:
        facts.append(("prediction, median error", format_percent(summed["median_error"])))
    if "memory_error" in summed:
        facts.append(("memory, median error", format_percent(summed["memory_error"])))
    if "moved_share" in summed:
        facts.append(("sequences moved by lookahead", format_percent(summed["moved_share"])))
    if "mfu" in summed:
        facts.insert(4, ("MFU", format_percent(summed["mfu"])))
    if "last_evaluation" in summed:
        first, last = summed["first_evaluation"], summed["last_evaluation"]
        facts.insert(3, ("held-out loss", f"{first:.3f} → {last:.3f}"))
    if "static_ratio" in summed:
        ratio = f"{summed['static_ratio']:.2f} × as long{_compared_steps(run)}"
        facts.append(("best static strategy", ratio))
    return facts


def inline_svg(section: Section) -> str:
    """Return a figure as an SVG element with unique ids and the width of the page."""
    svg = section.drawing.render("svg").decode()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'\bid="', f'id="{section.name}-', svg)
    svg = re.sub(r'(href="|url\()#', rf"\1#{section.name}-", svg)
    return svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(section.heading)}"', 1)


def report(
    run: Run, progress: ProgressCallback = ignore_progress
) -> tuple[str, list[Section], dict[str, float]]:
    """Return the page of a run, its figures, and its numbers.

    Args:
        run: Run of the report.
        progress: Callback with the current activity and its progress.

    Raises:
        HydraulisError: matplotlib is missing (code `extra_missing`).
    """
    found = balances(run, progress)
    shown = list(sections(run, found, progress))
    summed = numbers(run, found)
    return page(run, shown, summed), shown, summed
