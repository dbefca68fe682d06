"""Figures of a run: what their axes, bars and titles say."""

import dataclasses

import numpy as np
import pytest

from hydraulis.report import style
from hydraulis.report.lengths import lengths_figure, octaves
from hydraulis.report.loss import loss_figure, moving_mean
from hydraulis.report.prediction import prediction_figure
from hydraulis.report.run import read_run
from hydraulis.report.strategies import MOST, strategies_figure
from hydraulis.runtime.evaluation import Evaluation
from hydraulis.runtime.metrics import StepMetrics
from report.made_up_run import write_run


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> list[StepMetrics]:
    path = tmp_path_factory.mktemp("runs") / "run"
    write_run(path)
    return read_run(path).metrics


@pytest.mark.parametrize("lengths", [[1], [8], [1, 2, 3, 900], [5] * 300 + [4096], [1000, 1023, 1024]])
def test_every_length_is_between_two_edges(lengths: list[int]) -> None:
    edges = octaves(np.array(lengths))
    assert sorted(set(edges)) == edges
    assert edges[0] == 1 <= min(lengths)
    assert edges[-1] > max(lengths) >= edges[-2]


def test_shares_of_sequences_and_of_tokens() -> None:
    drawing = lengths_figure(np.array([2] * 30 + [64]))
    heights = [round(float(bar.get_height())) for bar in drawing.panels[0].patches]  # type: ignore[attr-defined]
    assert heights == [97, 0, 0, 0, 0, 3, 48, 0, 0, 0, 0, 52]
    labels = [label.get_text() for label in drawing.panels[0].get_xticklabels()]
    assert labels[0] == "1–\n3"
    assert labels[-1] == "64"


def test_the_loss_ends_where_it_ended(metrics: list[StepMetrics]) -> None:
    (panel,) = loss_figure(metrics).panels
    assert panel.get_title(loc="left") == "Loss of 6 steps: 6.000 to 3.500 nats a token"
    assert panel.lines[0].get_ydata()[-1] == 3.5  # type: ignore[index]
    assert panel.lines[0].get_xdata()[-1] == sum(one.tokens for one in metrics)  # type: ignore[index]


def test_losses_on_what_is_held_out_stand_over_the_tokens_trained_before(metrics: list[StepMetrics]) -> None:
    evaluations = [Evaluation(0, 6.5), Evaluation(2, 5.5), Evaluation(6, 4.0)]
    (panel,) = loss_figure(metrics, evaluations).panels
    tokens = np.cumsum([one.tokens for one in metrics])
    (line,) = [line for line in panel.lines if line.get_label() == "on what is held out"]
    assert list(line.get_xdata()) == [0, tokens[1], tokens[5]]  # type: ignore[arg-type]
    assert list(line.get_ydata()) == [6.5, 5.5, 4.0]  # type: ignore[arg-type]


def test_a_moving_mean_is_the_mean_around_each_value() -> None:
    values = np.array([1.0, 5.0, 3.0, 7.0, 9.0])
    assert moving_mean(values, 1).tolist() == values.tolist()
    assert moving_mean(values, 3) == pytest.approx([1, 3, 5, 19 / 3, 9])
    assert moving_mean(values, 99) == pytest.approx([1, 3, 5, 19 / 3, 9])


def test_a_row_for_each_strategy_the_most_frequent_first(metrics: list[StepMetrics]) -> None:
    chosen, longest = strategies_figure(metrics).panels
    assert [label.get_text() for label in chosen.get_yticklabels()] == ["4x<1>  3x", "1x<tp2>+1x<pp2>  3x"]
    assert len(chosen.patches) == len(longest.patches) == 6
    assert [bar.get_height() for bar in longest.patches] == [one.longest for one in metrics]  # type: ignore[attr-defined]


def test_rare_strategies_share_a_row(metrics: list[StepMetrics]) -> None:
    many = [dataclasses.replace(metrics[0], step=step, strategy=f"{step % 20 + 1}x<1>") for step in range(40)]
    chosen, _ = strategies_figure(many).panels
    labels = [label.get_text() for label in chosen.get_yticklabels()]
    assert len(labels) == MOST + 1
    assert labels[-1] == "others  16x"


def test_long_runs_are_drawn_in_a_few_pieces(metrics: list[StepMetrics]) -> None:
    many = [dataclasses.replace(metrics[step % 6], step=step) for step in range(style.MOST_TIPS + 1)]
    for drawing in (strategies_figure(many), prediction_figure(many)):
        pieces = sum(
            len(panel.patches) + len(panel.lines) + len(panel.collections) for panel in drawing.panels
        )
        assert 4 <= pieces < 20


def test_the_error_is_the_median_one(metrics: list[StepMetrics]) -> None:
    over, against = prediction_figure(metrics).panels
    assert over.get_title(loc="left") == "The median iteration is off by 7.5 %"
    dots: list[list[float]] = [np.concatenate(line.get_data()).tolist() for line in against.lines[1:]]
    assert dots == [[one.measured_ms, one.planned_ms] for one in metrics]
