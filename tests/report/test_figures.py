"""Figures of a run: their axes, bars and titles."""

import dataclasses

import numpy as np
import pytest

from hydraulis.report import style
from hydraulis.report.imbalance import Balance, imbalance_figure
from hydraulis.report.loss import loss_figure, moving_mean
from hydraulis.report.prediction import prediction_figure
from hydraulis.report.run import read_run
from hydraulis.report.slowness import MOST as MOST_SLOW
from hydraulis.report.slowness import has_slow, slowness_figure
from hydraulis.report.strategies import MOST, strategies_figure
from hydraulis.report.training import training_figure
from hydraulis.runtime.records.evaluation import Evaluation
from hydraulis.runtime.records.metrics import StepMetrics
from report.made_up_run import write_run


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> list[StepMetrics]:
    path = tmp_path_factory.mktemp("runs") / "run"
    write_run(path)
    return read_run(path).metrics


def test_the_curve_of_the_loss_ends_at_the_last_step(metrics: list[StepMetrics]) -> None:
    (panel,) = loss_figure(metrics).panels
    assert panel.get_title(loc="left") == "Loss of 6 steps: 6.000 to 3.500 nats a token"
    assert panel.lines[0].get_ydata()[-1] == 3.5  # type: ignore[index]
    assert panel.lines[0].get_xdata()[-1] == sum(one.tokens for one in metrics)  # type: ignore[index]
    assert panel.get_ylabel() == "nats a token"
    legend = panel.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [
        "training loss, each step and the moving mean"
    ]


def test_held_out_losses_are_drawn_over_the_trained_tokens(metrics: list[StepMetrics]) -> None:
    evaluations = [Evaluation(0, 6.5, "ab"), Evaluation(2, 5.5, "ab"), Evaluation(6, 4.0, "ab")]
    (panel,) = loss_figure(metrics, evaluations).panels
    tokens = np.cumsum([one.tokens for one in metrics])
    (line,) = [line for line in panel.lines if line.get_label() == "held-out loss"]
    assert list(line.get_xdata()) == [0, tokens[1], tokens[5]]  # type: ignore[arg-type]
    assert list(line.get_ydata()) == [6.5, 5.5, 4.0]  # type: ignore[arg-type]


def test_a_held_out_loss_is_drawn_at_the_last_recorded_step_before_it(metrics: list[StepMetrics]) -> None:
    evaluations = [Evaluation(0, 6.5, "ab"), *(Evaluation(step, 6.0 - step, "ab") for step in range(1, 6))]
    (panel,) = loss_figure([metrics[1], metrics[2], metrics[5]], evaluations).panels
    second, third = metrics[1].tokens, metrics[1].tokens + metrics[2].tokens
    (line,) = [line for line in panel.lines if line.get_label() == "held-out loss"]
    assert list(line.get_xdata()) == [0, 0, second, third, third, third]  # type: ignore[arg-type]


def test_losses_on_earlier_held_out_data_are_a_line_of_their_own(metrics: list[StepMetrics]) -> None:
    evaluations = [Evaluation(0, 2.5, "ab"), Evaluation(2, 1.5, "ab"), Evaluation(6, 4.0, "cd")]
    (panel,) = loss_figure(metrics, evaluations).panels
    by_name = {str(line.get_label()): line for line in panel.lines}
    assert list(by_name["_held-out loss on earlier data"].get_ydata()) == [2.5, 1.5]  # type: ignore[arg-type]
    assert list(by_name["held-out loss"].get_ydata()) == [4.0]  # type: ignore[arg-type]


def test_a_legend_is_above_the_data_at_the_left(metrics: list[StepMetrics]) -> None:
    drawing = loss_figure(metrics, [Evaluation(0, 6.5, "ab"), Evaluation(6, 4.0, "cd")])
    drawing.figure.draw_without_rendering()
    (panel,) = drawing.panels
    legend = panel.get_legend()
    assert legend is not None
    box, whole = legend.get_window_extent(), drawing.figure.bbox
    # A screen of 390 px shows this part of a figure of 34 rem.
    assert box.x1 < 390 / (34 * 16) * whole.width
    highest = max(6.5, *(one.loss for one in metrics))
    assert panel.transData.transform((0, highest))[1] <= box.y0


def test_each_step_has_its_rate_gradient_speed_and_transfers(metrics: list[StepMetrics]) -> None:
    panels = training_figure(metrics).panels
    drawn = [list(panel.lines[0].get_ydata()) for panel in panels]  # type: ignore[arg-type]
    assert drawn == [
        [one.learning_rate for one in metrics],
        [one.gradient_norm for one in metrics],
        [one.tokens_per_s for one in metrics],
        [100 * one.transfer_ms / one.wall_ms for one in metrics],
    ]
    assert [list(panel.lines[0].get_xdata()) for panel in panels] == 4 * [list(range(1, 7))]  # type: ignore[arg-type]
    nothing = [dataclasses.replace(one, transfer_ms=0.0) for one in metrics]
    assert training_figure(nothing).panels[-1].get_ylim() == (0, 1)


def test_a_moving_mean_is_centred_on_each_value() -> None:
    values = np.array([1.0, 5.0, 3.0, 7.0, 9.0])
    assert moving_mean(values, 1).tolist() == values.tolist()
    assert moving_mean(values, 3) == pytest.approx([1, 3, 5, 19 / 3, 9])
    assert moving_mean(values, 99) == pytest.approx([1, 3, 5, 19 / 3, 9])


def test_each_strategy_has_a_row_in_order_of_frequency(metrics: list[StepMetrics]) -> None:
    chosen, longest = strategies_figure(metrics).panels
    assert [label.get_text() for label in chosen.get_yticklabels()] == [
        "4x<1>, 3 steps",
        "1x<tp2>+1x<pp2>, 3 steps",
    ]
    assert len(chosen.patches) == len(longest.patches) == 6
    assert [bar.get_height() for bar in longest.patches] == [one.longest for one in metrics]  # type: ignore[attr-defined]


def test_a_run_of_one_step_is_drawn(metrics: list[StepMetrics]) -> None:
    chosen, longest = strategies_figure(metrics[:1]).panels
    assert chosen.get_title(loc="left") == "1 strategy in 1 step"
    assert [label.get_text() for label in chosen.get_yticklabels()] == ["4x<1>, 1 step"]
    assert [tick for tick in longest.get_xticks() if -0.5 <= tick <= 0.5] == [0]


def test_rare_strategies_share_a_row(metrics: list[StepMetrics]) -> None:
    many = [dataclasses.replace(metrics[0], step=step, strategy=f"{step % 20 + 1}x<1>") for step in range(40)]
    chosen, _ = strategies_figure(many).panels
    labels = [label.get_text() for label in chosen.get_yticklabels()]
    assert len(labels) == MOST + 1
    assert labels[-1] == "others, 16 steps"


def test_long_runs_are_drawn_with_few_artists(metrics: list[StepMetrics]) -> None:
    many = [dataclasses.replace(metrics[step % 6], step=step) for step in range(style.MOST_TIPS + 1)]
    for drawing in (strategies_figure(many), prediction_figure(many)):
        pieces = sum(
            len(panel.patches) + len(panel.lines) + len(panel.collections) for panel in drawing.panels
        )
        assert 4 <= pieces < 20


def test_the_prediction_error_is_a_median(metrics: list[StepMetrics]) -> None:
    over, against = prediction_figure(metrics).panels
    assert over.get_title(loc="left") == "Median prediction error: 7.5 %"
    dots: list[list[float]] = [np.concatenate(line.get_data()).tolist() for line in against.lines[1:]]
    assert dots == [[one.measured_ms, one.planned_ms] for one in metrics]


def test_steps_without_a_measured_time_have_no_prediction_error(metrics: list[StepMetrics]) -> None:
    of_step = [dataclasses.replace(one, measured_ms=0.0) if one.step == 3 else one for one in metrics]
    over, against = prediction_figure(of_step).panels
    # Of the others, two predicted times are 0.95 of the measured ones, and three are 1.1 of them.
    assert over.get_title(loc="left") == "Median prediction error: 10.0 %"
    assert list(over.lines[1].get_xdata()) == [1, 2, 4, 5, 6]  # type: ignore[arg-type]
    assert len(against.lines) == 1 + 5


def test_the_balance_is_labelled_as_predicted() -> None:
    # The title of a long name stays inside the figure.
    static = Balance(
        name="2x<tp16>+2x<tp8>+4x<tp4> for all steps",
        steps=[0, 1],
        replica_ms=[[5e4]] * 2,
        idle=1,
        mean_step_ms=5e4,
    )
    planned = Balance(
        name="A plan for each step", steps=[0, 1], replica_ms=[[1.0], [2.0, 3.0]], idle=0.25, mean_step_ms=2
    )
    drawing = imbalance_figure([static, planned])
    drawing.render("png")
    titles = [panel.get_title(loc="left") for panel in drawing.panels]
    assert titles[1] == "A plan for each step: predicted mean 2 ms, ranks idle 25.0 %"
    assert {panel.get_ylabel() for panel in drawing.panels} == {"predicted end, ms"}
    ends = [panel._left_title.get_window_extent().x1 for panel in drawing.panels]  # type: ignore[attr-defined]
    assert 1000 < max(ends) < 200 * drawing.figure.get_figwidth()
    assert "step 1: 2 replicas predicted to end from 2 to 3 ms" in drawing.render("svg").decode()


def test_steps_that_are_not_compared_are_drawn_in_grey_and_equal_panels_once() -> None:
    planned = Balance(
        name="A plan for each step",
        steps=[3],
        replica_ms=[[2.0, 3.0]],
        idle=0.25,
        mean_step_ms=3,
        other_steps=[1, 2],
        other_ms=[[9.0], [7.0, 8.0]],
    )
    static = dataclasses.replace(planned, name="2x<1> for all steps", other_steps=[], other_ms=[])
    (panel,) = imbalance_figure([static, planned]).panels
    assert panel.get_title(loc="left") == "A plan for each step: predicted mean 3 ms, ranks idle 25.0 %"
    dots = [line for line in panel.lines if line.get_marker() == "o"]
    assert [(list(dot.get_xdata()), dot.get_color()) for dot in dots] == [  # type: ignore[arg-type]
        ([3, 3], style.PLANNED),
        ([1], style.STATIC),
        ([2, 2], style.STATIC),
    ]
    assert panel.get_ylim()[1] > 9


def test_slow_ranks_and_slow_links_have_a_line_from_step_to_step(metrics: list[StepMetrics]) -> None:
    assert not has_slow(metrics)
    slow = [
        dataclasses.replace(one, link_slowdowns=(1.0, 3.0) if one.step in (3, 4) else ()) for one in metrics
    ]
    (links,) = slowness_figure(slow).panels
    assert links.get_title(loc="left") == "Slow links between nodes"
    (line,) = links.lines
    assert line.get_label() == "node 1"
    assert list(line.get_ydata()) == [1, 1, 3, 3, 1, 1]  # type: ignore[arg-type]
    both = [dataclasses.replace(one, rank_rates=(1.0, 0.5, 1.0, 0.25)) for one in slow]
    ranks, links = slowness_figure(both).panels
    assert [line.get_label() for line in ranks.lines] == ["rank 3", "rank 1"]
    assert list(ranks.lines[0].get_ydata()) == [4] * 6  # type: ignore[arg-type]
    assert len(links.lines) == 1


def test_many_slow_ranks_are_not_all_named(metrics: list[StepMetrics]) -> None:
    # Before it was resumed on more ranks, the run had two.
    slow = [
        dataclasses.replace(one, rank_rates=(1.0, 0.5) if one.step < 3 else (0.5,) * 9 + (1.0,))
        for one in metrics
    ]
    (panel,) = slowness_figure(slow).panels
    assert len(panel.lines) == MOST_SLOW
    assert [text.get_text() for text in panel.texts] == ["and 3 more"]
    assert list(panel.lines[2].get_ydata()) == [1, 1, 2, 2, 2, 2]  # type: ignore[arg-type]
