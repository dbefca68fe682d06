"""The report of a run: one HTML page that holds all it shows, and asks nobody for anything."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from hydraulis.data.analysis import Analysis, compute_length_statistics
from hydraulis.progress import ignore_progress
from hydraulis.report.data import data_figure
from hydraulis.report.imbalance import Balance, balances, comparable, imbalance_figure
from hydraulis.report.loss import loss_figure
from hydraulis.report.prediction import prediction_figure
from hydraulis.report.strategies import strategies_figure
from hydraulis.report.timeline import timeline_figure
from hydraulis.runtime.memory.prediction import MemoryPrediction
from hydraulis.runtime.records.metrics import mean_mfu, mean_tokens_per_s, median_prediction_error
from hydraulis.text.numbers import format_count, format_percent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hydraulis.progress import ProgressCallback
    from hydraulis.report.run import Run, TracedStep
    from hydraulis.report.style import Drawing

    # Name, heading, caption, and what draws it.
    _Figure = tuple[str, str, str, Callable[[Run, Sequence[Balance]], Drawing]]

# A page may load nothing at all; styles and pictures are in it.
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
svg [id*="tip-"]:hover { opacity: 0.7; }
@media print { body { max-width: none; padding: 0; } figure { break-inside: avoid; } }
""".strip()


@dataclass(frozen=True, slots=True)
class Section:
    """A figure of the report.

    Attributes:
        name: of its file.
        heading: above it.
        caption: what to look for.
        drawing: the figure.
    """

    name: str
    heading: str
    caption: str
    drawing: Drawing


def sections(run: Run, found: Sequence[Balance], progress: ProgressCallback) -> Iterator[Section]:
    """Draw the figures of a run, in the page's order; each when it is asked for.

    Args:
        run: as it was read.
        found: as `balances` gave it.
        progress: called before each with what is done, how many are, and of how many.

    Raises:
        HydraulisError: matplotlib is missing (code `extra_missing`).
    """
    drawn = [_data(run.analysis)] if run.analysis is not None else []
    drawn += _OF_EVERY_RUN
    drawn += [_imbalance(len(run.plans) - len(comparable(run)))] if found else []
    drawn += [_timeline(run.traced)] if run.traced is not None else []
    for done, (name, heading, caption, draw) in enumerate(drawn):
        progress("drawing figures", done, len(drawn))
        yield Section(name, heading, caption, draw(run, found))


def _trained(run: Run) -> Analysis:
    """Look at the lengths of all steps, as the data set's are looked at."""
    targets = np.concatenate([plan.targets for plan in run.plans])
    return Analysis(lengths=compute_length_statistics(run.lengths, targets), batches=None)


def _data(analysis: Analysis) -> _Figure:
    caption = "Where sequences, tokens and attention are; how uneven plain data parallelism would find it."
    why = None if analysis.batches is None else analysis.batches.why_no_more
    if why is not None:
        caption += f" Batches are not dealt out to more replicas, because {why}."
    return "data", "The data set", caption, lambda _run, _found: data_figure(analysis)


def _timeline(traced: TracedStep) -> _Figure:
    title = (
        f"step {traced.step}, {traced.plan.strategy}: {format_count(len(traced.plan.lengths), 'sequence')}"
    )
    return (
        "timeline",
        f"Step {traced.step}, stage by stage",
        "The same instruction lists with predicted and measured durations; rest the pointer on a block.",
        lambda _run, _found: timeline_figure(traced.plan, traced.timelines, title),
    )


def _imbalance(left_out: int) -> _Figure:
    caption = "When each replica ends, as predicted: a dot each; from the first to the last, the others wait."
    if left_out:
        caption += (
            f" {left_out:,} earlier steps are left out: they ran on other ranks, or by schemes that the "
            "profile of the run, resumed since, does not have."
        )
    return "imbalance", "Balance of the replicas", caption, lambda _, found: imbalance_figure(found)


_OF_EVERY_RUN: tuple[_Figure, ...] = (
    (
        "lengths",
        "Lengths that were trained",
        "Most sequences are short; most tokens are in long ones, which decide the strategy.",
        lambda run, _: data_figure(_trained(run)),
    ),
    (
        "loss",
        "Loss",
        "The mean over all target tokens of each global batch, and of all that is held out.",
        lambda run, _: loss_figure(run.metrics, run.evaluations),
    ),
    (
        "strategies",
        "Strategies",
        "Each step runs under the strategy that is planned to be shortest for its lengths.",
        lambda run, _: strategies_figure(run.metrics),
    ),
    (
        "prediction",
        "Predicted and measured",
        "The slowest replica's computation: as the profile predicts it, and as the run took.",
        lambda run, _: prediction_figure(run.metrics),
    ),
)


def numbers(run: Run, found: Sequence[Balance]) -> dict[str, float]:
    """Sum the run up.

    Returns:
        `steps`, and `num_steps`, those that the run is to have; `tokens`, `first_loss`, `last_loss`,
        `strategies`; `tokens_per_s`, and `mfu` where it is known, over all steps; `median_error` of planned
        times and `memory_error`, the median over ranks and steps, where known, `first_evaluation` and
        `last_evaluation` where there are any, `left_out`, how many steps are not `comparable`, where any are
        not, and `static_ratio`, how many times as long the best static strategy is planned to take, where
        there is one.
    """
    metrics = run.metrics
    summed: dict[str, float] = {
        "steps": len(metrics),
        "num_steps": run.num_steps,
        "tokens": sum(one.tokens for one in metrics),
        "first_loss": metrics[0].loss,
        "last_loss": metrics[-1].loss,
        "strategies": len({one.strategy for one in metrics}),
        "tokens_per_s": mean_tokens_per_s(metrics),
    }
    error = median_prediction_error(metrics)
    if error is not None:
        summed["median_error"] = error
    memory = MemoryPrediction.of(metrics)
    if memory is not None:
        summed["memory_error"] = memory.median_error
    mfu = mean_mfu(metrics)
    if mfu is not None:
        summed["mfu"] = mfu
    if run.evaluations:
        summed["first_evaluation"] = run.evaluations[0].loss
        summed["last_evaluation"] = run.evaluations[-1].loss
    left_out = len(run.plans) - len(comparable(run))
    if left_out:
        summed["left_out"] = left_out
    if len(found) > 1:
        summed["static_ratio"] = found[0].mean_ms / found[-1].mean_ms
    return summed


def page(run: Run, shown: Sequence[Section], summed: dict[str, float]) -> str:
    """Return the page.

    Args:
        run: as it was read.
        shown: its figures.
        summed: as `numbers` gave it.
    """
    name = html.escape(run.path.resolve().name)
    facts = "".join(f"<div><dt>{label}</dt><dd>{value}</dd></div>" for label, value in _facts(run, summed))
    body = "".join(
        f'<section id="{one.name}"><h2>{html.escape(one.heading)}</h2><p>{html.escape(one.caption)}</p>'
        f"<figure>{inline_svg(one)}</figure></section>\n"
        for one in shown
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{name}: a run of Hydraulis</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{name}</h1><p>{html.escape(run.profile.name)} on {_ranks(run)}</p>"
        f"<dl>{facts}</dl>\n{body}</body></html>\n"
    )


def _ranks(run: Run) -> str:
    """Say on how many ranks a run was, and on how many then where it went on with other ones."""
    numbers_of_ranks = [str(gpus) for gpus, _ in groupby(plan.cluster.gpus for plan in run.plans)]
    return f"{', then '.join(numbers_of_ranks)} ranks"


def _of_which_steps(run: Run) -> str:
    """Say of which steps what is compared is, where it is not of all."""
    places, steps = comparable(run), len(run.plans)
    if len(places) == steps:
        return ""
    are_last = places[0] == steps - len(places)
    return f", of the last {len(places):,} steps" if are_last else f", of {len(places):,} of the steps"


def _steps(summed: dict[str, float]) -> str:
    """Say how many steps are on record, and of how many where some are to come."""
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
    if "mfu" in summed:
        facts.insert(4, ("MFU", format_percent(summed["mfu"])))
    if "last_evaluation" in summed:
        first, last = summed["first_evaluation"], summed["last_evaluation"]
        facts.insert(3, ("on what is held out", f"{first:.3f} → {last:.3f}"))
    if "static_ratio" in summed:
        ratio = f"{summed['static_ratio']:.2f} × as long{_of_which_steps(run)}"
        facts.append(("best static strategy", ratio))
    return facts


def inline_svg(section: Section) -> str:
    """Return a figure as an element of the page: its ids are its own, its size is the page's."""
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
    """Make the page of a run, its figures and its numbers.

    Args:
        run: as it was read.
        progress: called with what is done, how much of it is, and of how much.

    Raises:
        HydraulisError: matplotlib is missing (code `extra_missing`).
    """
    found = balances(run, progress)
    shown = list(sections(run, found, progress))
    summed = numbers(run, found)
    return page(run, shown, summed), shown, summed
