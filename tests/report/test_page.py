"""The report: one self-contained file with every figure and the right numbers."""

import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from hydraulis import Cluster, CostProfile, Link, LinkRates, Planner
from hydraulis.data.analysis import compute_batch_imbalance
from hydraulis.planner.profile import load_profile
from hydraulis.progress import ignore_progress
from hydraulis.report.imbalance import balances
from hydraulis.report.page import Section, numbers, page, report, sections
from hydraulis.report.run import Run, read_run
from hydraulis.runtime.records.samples import SampledText, Samples
from profiles import made_up_profile
from report.made_up_run import CLUSTER, PROFILE, STRATEGIES, made_up_config, write_run

Said = tuple[str, int, int]
NAMES = ["data", "lengths", "loss", "training", "strategies", "prediction", "imbalance", "timeline"]
VOID = {"meta", "br", "hr", "img"}


class Page(HTMLParser):
    """Collects ids, references and addresses as a browser does, and checks that elements are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.references: list[str] = []
        self.addresses: list[str] = []
        self.open: list[str] = []
        self.titles = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.titles += tag == "title"
        for name, value in attrs:
            text = value or ""
            if name == "id":
                self.ids.append(text)
            self.references += re.findall(r"url\(#([^)]+)\)", text)
            if name in ("href", "xlink:href", "src"):
                (self.references if text.startswith("#") else self.addresses).append(text.removeprefix("#"))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("runs") / "a <run>"
    write_run(path)
    return read_run(path)


@pytest.fixture(scope="module")
def reported(run: Run) -> tuple[str, list[Section], dict[str, float], list[Said]]:
    said: list[Said] = []
    return *report(run, lambda *report: said.append(report)), said


@pytest.fixture(scope="module")
def parsed_page(reported: tuple[str, list[Section], dict[str, float], list[Said]]) -> Page:
    parsed = Page()
    parsed.feed(reported[0])
    parsed.close()
    return parsed


def test_every_figure_is_on_the_page(
    run: Run, reported: tuple[str, list[Section], dict[str, float], list[Said]], parsed_page: Page
) -> None:
    text, shown, _, said = reported
    assert [one.name for one in shown] == NAMES
    assert [name for name in parsed_page.ids if name in NAMES] == NAMES
    assert text.count("<svg") == len(NAMES)
    assert parsed_page.open == []
    assert parsed_page.titles > 60
    steps = len(run.plans)
    planned = [done for name, done, of in said if name.startswith("planning under ") and of == steps]
    assert planned == 2 * list(range(steps))
    assert said[-len(NAMES) :] == [("drawing figures", done, len(NAMES)) for done in range(len(NAMES))]
    assert len(said) == 2 * steps + len(NAMES)


def test_trained_lengths_are_drawn_like_the_data(run: Run) -> None:
    data, trained = (one.drawing.panels[0] for one in list(sections(run, [], ignore_progress))[:2])
    assert trained.get_title(loc="left") == data.get_title(loc="left")
    labels = [[label.get_text() for label in panel.get_xticklabels()] for panel in (data, trained)]
    assert labels[0] == labels[1] == ["4-7", "8-15", "16-31", "32-63", "64-127", "128-255", "256-405"]


def test_why_batches_are_assigned_to_fewer_replicas_than_ranks(run: Run) -> None:
    assert run.analysis is not None
    assert "more replicas" not in next(sections(run, [], ignore_progress)).caption
    few = compute_batch_imbalance([plan.lengths[:3] for plan in run.plans], CLUSTER.gpus)
    analysis = dataclasses.replace(run.analysis, batches=few)
    shown = next(sections(dataclasses.replace(run, analysis=analysis), [], ignore_progress))
    assert (
        "not assigned to more replicas, because half of the batches have no more sequences" in shown.caption
    )
    assert shown.drawing.panels[1].get_title(loc="left") == "Assigned in turn to 3 replicas"


def test_sampled_texts_are_on_the_page_as_text(tmp_path: Path) -> None:
    write_run(tmp_path / "run", steps=2)
    run = read_run(tmp_path / "run")
    assert "Samples of text" not in page(run, [], numbers(run, []))
    lines = [Samples(step, (SampledText("<b>", f"\n text {step}"),)) for step in (1, 2, 3)]
    (tmp_path / "run" / "samples.jsonl").write_text("".join(f"{one.to_json()}\n" for one in lines))
    run = read_run(tmp_path / "run")
    # A running training may be ahead of its metrics.
    assert run.samples == lines[:2]
    content = page(run, [], numbers(run, []))
    assert "<details><summary>after step 1</summary>" in content
    assert "<details open><summary>after step 2</summary>" in content
    assert '<th>&lt;b&gt;</th><td class="text">\n text 2</td>' in content


def test_the_configuration_is_on_the_page(tmp_path: Path) -> None:
    write_run(tmp_path / "run", steps=2)
    config = made_up_config(["4x<1>"], 2) | {"output": {"directory": "a <b>", "peak_tflops": None}}
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    text = page(read_run(tmp_path / "run"), [], numbers(read_run(tmp_path / "run"), []))
    assert "<summary>planner</summary>" in text
    assert "<th>strategies</th><td>[&quot;4x&lt;1&gt;&quot;]</td>" in text
    assert "<th>directory</th><td>&quot;a &lt;b&gt;&quot;</td>" in text
    assert "<th>peak_tflops</th><td></td>" in text


def test_the_page_loads_no_other_resource(
    reported: tuple[str, list[Section], dict[str, float], list[Said]], parsed_page: Page
) -> None:
    assert [address for address in parsed_page.addresses if not address.startswith("data:")] == []
    assert "<script" not in reported[0]
    assert "default-src 'none'" in reported[0]


def test_ids_are_unique_and_references_resolve(parsed_page: Page) -> None:
    assert len(parsed_page.ids) == len(set(parsed_page.ids)) > 200
    assert len(parsed_page.references) > 50
    assert set(parsed_page.references) <= set(parsed_page.ids)


def test_names_are_escaped(reported: tuple[str, list[Section], dict[str, float], list[Said]]) -> None:
    assert "<h1>a &lt;run&gt;</h1>" in reported[0]
    assert "a <run>" not in reported[0]


def test_the_page_has_the_numbers_of_the_run(
    run: Run, reported: tuple[str, list[Section], dict[str, float], list[Said]]
) -> None:
    text, _, summed, _ = reported
    assert (summed["steps"], summed["first_loss"], summed["last_loss"]) == (6, 6.0, 3.5)
    assert summed["tokens"] == sum(int(plan.lengths.sum()) for plan in run.plans)
    # Predicted times are 1.1 and 0.95 of the measured ones, in turn.
    assert summed["median_error"] == pytest.approx((0.1 + 0.05) / 2)
    assert summed["strategies"] == len({plan.strategy for plan in run.plans}) == 2
    assert "6.000 → 3.500" in text
    assert " on 4 ranks</p>" in text
    assert " × as long<" in text
    assert (summed["first_evaluation"], summed["last_evaluation"]) == pytest.approx((6.5, 3.8))
    assert "6.500 → 3.800" in text
    # Over all steps, which take 1 to 6 s.
    assert summed["tokens_per_s"] == pytest.approx(summed["tokens"] / 21)
    assert f"<dt>tokens a second</dt><dd>{summed['tokens'] / 21:,.0f}</dd>" in text
    shares = [(0.3 + 0.01 * step) * (1 + step) for step in range(6)]
    assert summed["mfu"] == pytest.approx(sum(shares) / 21)
    assert "33.3 %" in text
    static = Planner(PROFILE, CLUSTER, strategies=["2x<tp2>"])
    kept = sum(static.plan(plan.lengths).iteration_ms for plan in run.plans)
    assert summed["static_ratio"] == pytest.approx(kept / sum(plan.iteration_ms for plan in run.plans))


@pytest.mark.parametrize(("num_steps", "says"), [(86, "2 of 86"), (2, "2")])
def test_an_unfinished_run_shows_the_number_of_all_steps(tmp_path: Path, num_steps: int, says: str) -> None:
    write_run(tmp_path / "run", steps=2)
    config = json.loads((tmp_path / "run" / "config.json").read_text()) | {"train": {"steps": num_steps}}
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    run = read_run(tmp_path / "run")
    summed = numbers(run, [])
    assert summed["num_steps"] == num_steps
    assert f"<dt>steps</dt><dd>{says}</dd>" in page(run, [], summed)


def test_the_share_of_sequences_that_a_lookahead_moved_is_shown(tmp_path: Path) -> None:
    write_run(tmp_path / "run", steps=2)
    path = tmp_path / "run" / "metrics.jsonl"
    assert "moved_share" not in numbers(read_run(tmp_path / "run"), [])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["moved"] = 4
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    run = read_run(tmp_path / "run")
    summed = numbers(run, [])
    assert summed["moved_share"] == 4 / sum(line["sequences"] for line in lines)
    assert "<dt>sequences moved by lookahead</dt>" in page(run, [], summed)


def test_balance_compares_static_and_planned_steps(run: Run) -> None:
    before, after = balances(run)
    assert before.name == "2x<tp2> for all steps"
    assert before.steps == after.steps == list(range(1, 7))
    assert after.replica_ms == [[replica.predicted_ms for replica in plan.replicas] for plan in run.plans]
    assert {len(ends) for ends in before.replica_ms} == {2}
    assert after.mean_ms == pytest.approx(np.mean([plan.iteration_ms for plan in run.plans]))
    assert 0 <= after.idle < 1
    assert 0 <= before.idle < 1


def test_steps_with_transfers_are_compared_with_static_strategies_by_steps(tmp_path: Path) -> None:
    path, shape = tmp_path / "run", json.loads(load_profile("llama-7b-a800").to_json())
    of_shape = {name: shape[name] for name in ("model", "dtype")}
    profile = CostProfile.from_json(json.dumps(json.loads(PROFILE.to_json()) | of_shape))
    write_run(path, steps=2)
    (path / "profile.json").write_text(profile.to_json())
    config = made_up_config(STRATEGIES, steps=2)
    config["planner"] = {"strategies": STRATEGIES, "link": "25,25,0"}
    (path / "config.json").write_text(json.dumps(config))
    link = Link.of_profile(profile, LinkRates(gigabytes_per_s=25, gpu_gigabytes_per_s=25, message_us=0))
    planner = Planner(profile, CLUSTER, strategies=STRATEGIES, link=link)
    plans = [planner.plan(plan.lengths) for plan in read_run(path).plans]
    (path / "plans.jsonl").write_text("".join(f"{plan.to_json()}\n" for plan in plans))
    run = read_run(path)
    before, after = found = balances(run)
    assert after.mean_step_ms == pytest.approx(np.mean([plan.step_ms for plan in plans]))
    assert after.mean_step_ms > 1.1 * after.mean_ms
    assert before.mean_step_ms >= after.mean_step_ms
    assert numbers(run, found)["static_ratio"] == before.mean_step_ms / after.mean_step_ms


def test_without_a_trace_or_a_static_strategy_the_page_is_shorter(tmp_path: Path) -> None:
    write_run(tmp_path / "run", steps=2)
    for name in ("trace.json", "analysis.json", "evaluations.jsonl"):
        (tmp_path / "run" / name).unlink()
    (tmp_path / "run" / "config.json").write_text(json.dumps(made_up_config(["4x<1>"])))
    run = read_run(tmp_path / "run")
    (only,) = found = balances(run)
    assert only.name == "A plan for each step"
    assert [one.name for one in sections(run, found, ignore_progress)] == NAMES[1:-1]
    summed = numbers(run, found)
    assert "static_ratio" not in summed
    assert "last_evaluation" not in summed
    assert "best static strategy" not in page(run, [], summed)


def test_corrected_times_are_not_compared_with_a_static_strategy(tmp_path: Path) -> None:
    path = tmp_path / "run"
    plans = [json.loads(plan.to_json()) for plan in write_run(path, steps=2)]
    expected = balances(read_run(path))[-1]
    (path / "calibrations.jsonl").write_text('{"step": 1, "factors": {"<1>": 1.5}}\n')
    corrected = [plan | {"iteration_ms": 1.5 * plan["iteration_ms"]} for plan in plans]
    (path / "plans.jsonl").write_text("".join(f"{json.dumps(plan)}\n" for plan in corrected))
    (only,) = balances(read_run(path))
    assert only.name == expected.name
    # Corrected times of schemes do not count as waiting.
    assert only.idle == pytest.approx(expected.idle)


def test_steps_of_schemes_that_the_profile_lacks_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "run"
    plans = write_run(path)
    # Like a run resumed with other strategies: half of its steps were `1x<pp2>+1x<tp2>`.
    (path / "profile.json").write_text(made_up_profile({"<1>": 200, "<tp2>": 500}).to_json())
    (path / "config.json").write_text(json.dumps(made_up_config(["4x<1>", "2x<tp2>"])))
    (path / "metrics.jsonl").write_text("".join((path / "metrics.jsonl").read_text().splitlines(True)[:5]))
    text, shown, summed = report(read_run(path))
    assert [one.name for one in shown] == NAMES
    assert summed["left_out"] == 2
    assert " Not compared, in grey: 2 steps on other ranks, " in text
    after = balances(read_run(path))[-1]
    assert after.other_steps == [2, 4]
    assert after.other_ms == [[replica.predicted_ms for replica in plans[place].replicas] for place in (1, 3)]
    assert " × as long, of 3 of the steps<" in text
    assert balances(read_run(path))[-1].steps == [1, 3, 5]
    (path / "profile.json").write_text(made_up_profile({"<tp2>": 500}).to_json())
    text, shown, summed = report(read_run(path))
    assert summed["left_out"] == 5 == len(plans) - 1
    assert "imbalance" not in [one.name for one in shown]


def test_steps_on_other_ranks_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "run"
    plans = write_run(path)
    more = Planner(PROFILE, Cluster(gpus=8, gpus_per_node=8), strategies=["8x<1>"])
    resumed = [*plans[:4], *(more.plan(plan.lengths.clip(max=190)) for plan in plans[4:])]
    (path / "plans.jsonl").write_text("".join(f"{plan.to_json()}\n" for plan in resumed))
    metrics = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for one, plan in zip(metrics, resumed, strict=True):
        ranks = [None] * plan.cluster.gpus
        one |= {"tokens": int(plan.lengths.sum()), "rank_peak_bytes": ranks, "rank_planned_bytes": ranks}
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in metrics))
    (path / "config.json").write_text(json.dumps(made_up_config(["8x<1>", "4x<tp2>"])))
    run = read_run(path)
    assert balances(run)[-1].steps == [5, 6]
    text, _, summed = report(run)
    assert summed["left_out"] == 4
    assert " on 4, then 8 ranks</p>" in text
    assert f"{summed['static_ratio']:.2f} × as long, of the last 2 steps<" in text


def test_a_run_with_slow_links_has_a_figure_of_them(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    path = tmp_path / "run" / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[3]["link_slowdowns"] = [1.0, 2.5]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    text, shown, _ = report(read_run(tmp_path / "run"))
    assert [one.name for one in shown] == [*NAMES[:6], "slowness", *NAMES[6:]]
    assert '<section id="slowness"><h2>Slow ranks and links</h2>' in text


def test_a_run_without_plans_has_the_figures_of_its_metrics(tmp_path: Path) -> None:
    write_run(tmp_path / "<run>")
    (tmp_path / "<run>" / "plans.jsonl").unlink()
    text, shown, summed = report(read_run(tmp_path / "<run>"))
    assert [one.name for one in shown] == ["data", "loss", "training", "strategies", "prediction"]
    assert (summed["steps"], summed["last_loss"]) == (6, 3.5)
    assert "static_ratio" not in summed
    assert " on 4 ranks</p>" in text
    assert "<p>plans.jsonl lacks the plans of 5 steps</p>" in text
    assert "<p>trace.json is left out: step 2 has no plan in plans.jsonl</p>" in text


def test_a_run_without_measured_times_has_no_figure_of_them(tmp_path: Path) -> None:
    path = tmp_path / "run"
    write_run(path, steps=2)
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    unmeasured = [line | {"measured_ms": 0.0} for line in lines]
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in unmeasured))
    _, shown, summed = report(read_run(path))
    assert [one.name for one in shown] == [name for name in NAMES if name != "prediction"]
    assert "median_error" not in summed


def test_a_run_that_searched_is_compared_with_homogeneous_strategies(tmp_path: Path) -> None:
    path = tmp_path / "run"
    write_run(path)
    (path / "config.json").write_text(json.dumps(made_up_config(["search"])))
    kept, searched = balances(read_run(path))
    assert kept.name == "2x<tp2> for all steps"
    assert len(kept.replica_ms) == len(searched.replica_ms)


def test_a_run_on_shared_devices_is_marked(tmp_path: Path) -> None:
    path = tmp_path / "run"
    write_run(path, steps=3)
    assert "ranks_per_device" not in numbers(read_run(path), [])
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    lines[1]["ranks_per_device"] = 8
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    text, _, summed = report(read_run(path))
    assert summed["ranks_per_device"] == 8
    assert "up to 8 ranks shared a device: this run is a test, and its times mean nothing" in text
