"""`hydraulis simulate`: the table, the JSON document, the figure, and refusals."""

import json
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.invocation import assert_refused, drawn_options, printed_document, write_drawn_lengths
from cli.reports import collect_reports, interrupt_at
from hydraulis import CostProfile
from hydraulis.cli.exit import EXIT_INTERRUPTED
from hydraulis.cli.main import main
from hydraulis.data.sampling.sampler import BatchSampler
from hydraulis.planner import read_lengths
from hydraulis.planner.compare import PLANNERS


@pytest.fixture(scope="module")
def lengths(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_drawn_lengths(tmp_path_factory.mktemp("lengths"))


def options(lengths: Path, *more: str) -> list[str]:
    return drawn_options("simulate", lengths, 3, *more)


def planners(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = printed_document(capsys, [*arguments, "--json"])["planners"]
    return found


@pytest.mark.parametrize("command", ["simulate", "propose"])
def test_batches_that_repeat_the_same_data_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    few = tmp_path / "few.txt"
    few.write_text("8\n12\n")
    assert main([command, *options(few, "--count", "1", "--tokens-per-batch", "4000")[1:]]) == 0
    warning = capsys.readouterr().err
    assert warning.startswith("--tokens-per-batch = 4,000: ")
    assert "2 sequences of 20 tokens" in warning
    assert "200 times" in warning


def test_the_table_has_a_row_for_each_planner(lengths: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(options(lengths, "--slow", "5=1.5")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "3 batches of 60,000 tokens (seed 0), llama-32b-a800 on 64 GPUs; rank 5 1.5 times as slow"
    )
    times, parts, legend = lines[3:6], lines[8:11], lines[12:]
    assert lines[7].split() == ["needed", "computing", "slow", "rank", "bubble", "slow", "replica", "unused"]
    assert "transfers" not in "".join(legend)
    for rows in (times, parts):
        assert rows[0].startswith("static 8x<tp8>")
        assert [row.split()[0] for row in rows[1:]] == ["list", "search"]
    assert "1.00x" in times[0]
    for row in times:
        (memory,) = percentages(row)
        assert 20 < memory <= 100
    for row in parts:
        needed, *shares = percentages(row)
        assert len(shares) == 5
        assert sum(shares) == pytest.approx(100, abs=0.3)
        assert shares[1] > 0
        assert 0 < needed <= shares[0]


def percentages(row: str) -> list[float]:
    return [float(word) for word, unit in pairwise(row.split()) if unit == "%"]


def test_the_document_has_the_same_results(lengths: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = "1x<tp16>+12x<tp4>"
    found = planners(capsys, options(lengths, "--compare", f"search;{kept}"))
    assert [one["planner"] for one in found] == ["search", kept]
    for one in found:
        assert one["mean_ms"] == pytest.approx(np.mean(one["iteration_ms"]))
        assert one["p50_ms"] == sorted(one["iteration_ms"])[1]
        assert sum(one["shares"].values()) == pytest.approx(1)
        memory = one["memory"]
        total = memory.pop("total_bytes")
        assert sum(memory.values()) == pytest.approx(total)
        assert all(size > 0 for size in memory.values())
        by_stage = [stage["total_bytes"] for stages in one["stage_memory"].values() for stage in stages]
        assert max(by_stage) == total
        assert one["utilisation"] == one["shares"]["compute"]
        assert 0 < one["needed_share"] < one["utilisation"]
    assert found[1]["strategies"] == {kept: 3}
    assert {scheme: len(stages) for scheme, stages in found[1]["stage_memory"].items()} == {
        "<tp16>": 1,
        "<tp4>": 1,
    }
    assert found[0]["mean_ms"] <= found[1]["mean_ms"]


def test_slow_ranks_and_links_take_time(lengths: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only = ["--compare", "8x<tp4,pp2>", "--strategies", "4x<tp16>"]
    short = [*only, "--count", "1"]
    np.save(lengths.with_name("short.npy"), np.full(50, 700))
    arguments = options(lengths.with_name("short.npy"), *short)
    (plain,) = planners(capsys, arguments)
    assert plain["step_ms"] == plain["iteration_ms"]
    assert plain["transfers"] == {"transfer_ms": 0, "overlapped_share": 1}
    links = ["--link", "200,200,10"]
    (linked,) = planners(capsys, [*arguments, *links])
    assert linked["iteration_ms"] == pytest.approx(plain["iteration_ms"], rel=0.05)
    (slower,) = planners(capsys, [*arguments, *links, "--slow-link", "10,10,10"])
    assert slower["transfers"]["transfer_ms"] > linked["transfers"]["transfer_ms"] > 0
    assert slower["transfers"]["overlapped_share"] < linked["transfers"]["overlapped_share"]
    assert slower["iteration_ms"] == linked["iteration_ms"]
    (messages,) = planners(capsys, [*arguments, *links, "--messages"])
    assert messages["iteration_ms"][0] > linked["iteration_ms"][0]
    assert messages["strategies"] == linked["strategies"]
    (slow,) = planners(capsys, [*arguments, "--slow", "0=3", "--slow", "1=2"])
    assert plain["mean_ms"] < slow["mean_ms"] <= 3 * plain["mean_ms"]


def test_messages_use_measured_times(
    lengths: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(CostProfile.preset("llama-32b-a800").to_json())
    exchange = {"operation": "all_to_all", "ranks": 16, "latency_ms": 0.1, "gigabytes_per_s": 20.0}
    slow = {"operation": "send", "ranks": 16, "latency_ms": 50.0, "gigabytes_per_s": 20.0}
    np.save(lengths.with_name("short.npy"), np.full(50, 700))
    means = {}
    for name, links in (("exchanges", [exchange]), ("messages", [exchange, slow])):
        document["hardware"]["links"] = links
        profile = tmp_path / f"{name}.json"
        profile.write_text(json.dumps(document))
        arguments = options(lengths.with_name("short.npy"), "--compare", "4x<tp8,pp2>", "--count", "1")
        for link in ("profile", "200"):
            found = planners(capsys, [*arguments, "--profile", str(profile), "--link", link, "--messages"])
            means[name, link] = found[0]["mean_ms"]
    # A pipeline of two nodes waits for one message each way at least.
    assert means["messages", "profile"] > means["exchanges", "profile"] + 90
    assert means["messages", "200"] == means["exchanges", "200"]


def test_transfers_have_columns_with_links(
    lengths: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = tmp_path / "comparison.svg"
    more = ["--compare", "16x<tp4>", "--link", "20", "--figure", str(figure)]
    np.save(lengths.with_name("short.npy"), np.full(50, 700))
    assert main(options(lengths.with_name("short.npy"), *more)) == 0
    title, _, times, row, _, parts, second, *legend, _ = capsys.readouterr().out.splitlines()
    assert {"transfers:", "overlapped:"} < set(" ".join(legend).split())
    assert title.endswith("on 64 GPUs; transfers by links")
    assert times.split()[-2:] == ["memory", "overlapped"]
    assert parts.split()[-2:] == ["unused", "transfers"]
    _, overlapped = percentages(row)
    _, *shares = percentages(second)
    assert len(shares) == 6
    assert sum(shares) == pytest.approx(100, abs=0.4)
    assert shares[-1] > 0
    assert 0 < overlapped < 100
    assert "exposed transfers" in figure.read_text(encoding="utf-8")


def test_the_list_planner_uses_the_listed_strategies(
    lengths: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (one,) = planners(
        capsys, options(lengths, "--compare", "list", "--strategies", "4x<tp16>;2x<tp16>+4x<tp8>")
    )
    assert set(one["strategies"]) <= {"4x<tp16>", "2x<tp16>+4x<tp8>"}


def test_every_planner_uses_the_memory_limit(
    lengths: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    longer = tmp_path / "longer.npy"
    np.save(longer, np.append(np.load(lengths)[:80], [60_000] * 20))
    names = ["--compare", "static;search;2x<tp8,pp4>"]
    assert main(options(longer, *names)) == 2
    assert "[sequence_too_long]" in capsys.readouterr().err
    found = planners(capsys, options(longer, *names, "--memory", "in_flight"))
    assert [len(one["step_ms"]) for one in found] == [3, 3, 3]
    assert main(options(longer, *names, "--memory", "in_flight")) == 0
    assert "llama-32b-a800 on 64 GPUs; in_flight memory" in capsys.readouterr().out


def test_the_batches_equal_those_of_analyze(lengths: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, *drawn = options(lengths, "--seed", "3")
    assert main(["analyze", *drawn, "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)["comparison"]
    static, search = planners(capsys, ["simulate", *drawn, "--compare", "static;search"])
    assert [compared["static_ms"], compared["search_ms"]] == [static["mean_ms"], search["mean_ms"]]


def test_a_sequence_that_is_too_long_is_named_by_batch_and_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    longer = tmp_path / "longer.txt"
    longer.write_text("1000\n" * 50 + "40000\n" + "1000\n" * 50)
    assert main(options(longer, "--compare", "8x<tp4>")) == 2
    error = capsys.readouterr().err
    found = re.search(r": batch (\d+): sequence (\d+) has 40,000 tokens; .* \(its sequence (\d+) is", error)
    assert found is not None, error
    assert found[2] == found[3]
    assert error.endswith(" is number 50 of the data; all count from 0)\n")
    batch = BatchSampler(read_lengths(longer), 60_000, 0).batch(int(found[1]))
    assert batch.sequences[int(found[2])] == 50


def test_progress_is_reported_and_can_be_interrupted(
    lengths: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = collect_reports(monkeypatch)
    arguments = options(lengths, "--compare", "static;4x<tp16>")
    assert main(arguments) == 0
    steps = [one.name for one in reports]
    assert steps == [
        *3 * ["sampling batches"],
        *3 * ["planning under each static strategy"],
        *3 * ["simulating static"],
        *3 * ["simulating 4x<tp16>"],
    ]
    assert [(one.done, one.total) for one in reports] == 4 * [(0, 3), (1, 3), (2, 3)]
    capsys.readouterr()
    interrupt_at(monkeypatch, "simulating 4x<tp16>")
    assert main(arguments) == EXIT_INTERRUPTED
    assert capsys.readouterr() == ("", "hydraulis: interrupted\n")


def test_the_title_names_planned_and_actual_links(lengths: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(options(lengths, "--compare", "4x<tp16>", "--link", "200", "--slow-link", "50,100")) == 0
    title = capsys.readouterr().out.splitlines()[0]
    assert "links of 200, actual links 50,100 (GB/s" in title


@pytest.mark.parametrize(("kind", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_the_figure_has_the_format_of_its_ending(
    lengths: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, start: bytes
) -> None:
    path = tmp_path / f"comparison.{kind}"
    assert main(options(lengths, "--compare", "4x<tp16>;list", "--count", "2", "--figure", str(path))) == 0
    assert capsys.readouterr().out.endswith(f"written to {path}\n")
    assert path.read_bytes().startswith(start)
    assert main(options(lengths, "--compare", "4x<tp16>", "--figure", str(path), "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["files"] == [str(path)]
    stated = {name: found[name] for name in ("profile", "gpus", "gpus_per_node", "batches", "seed", "memory")}
    assert list(stated.values()) == ["llama-32b-a800", 64, 8, 3, 0, "per_micro_batch"]
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_a_figure_without_matplotlib_is_refused_before_the_work(
    lengths: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(options(lengths, "--figure", str(tmp_path / "c.png"))) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("hydraulis: error [extra_missing]: ")
    assert "pip install 'hydraulis[report]'" in output.err


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (["--slow", "64=2"], "argument_invalid"),
        (["--slow", "3=0.0"], "argument_invalid"),
        (["--slow", "3=1.3", "--slow", "3=2"], "option_invalid"),
        (["--messages"], "option_invalid"),
        (["--slow-link", "5"], "option_invalid"),
        (["--link", "25", "--slow-link", "none"], "option_invalid"),
        (["--link", "25", "--slow-link", "profile"], "option_invalid"),
        (["--link", "1e-12"], "config_value"),
        (["--link", "fast"], "config_value"),
        (["--link", "25", "--slow-link", "0"], "config_value"),
        (["--compare", "12x"], "strategy_invalid"),
        (["--compare", "static;nope"], "strategy_invalid"),
        (["--compare", "2x<tp4"], "strategy_invalid"),
        (["--compare", ""], "config_value"),
        (["--compare", " ; "], "config_value"),
        (["--compare", "8x<tp4>", "--count", "50"], "sequence_too_long"),
        (["--figure", "missing/c.png", "--count", "1", "--compare", "4x<tp16>"], "file_unwritable"),
        (["--lengths", "missing.txt"], "file_unreadable"),
    ],
)
def test_a_refusal_is_one_line(
    lengths: Path, capsys: pytest.CaptureFixture[str], more: list[str], code: str
) -> None:
    assert_refused(capsys, options(lengths, *more), code)


def test_an_unknown_planner_is_refused_with_the_known_ones(
    lengths: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(options(lengths, "--compare", "nope")) == 2
    error = capsys.readouterr().err
    assert f"--compare = 'nope' must be {', '.join(PLANNERS)} or strategies" in error
    assert "1x<tp16>+12x<tp4,pp2>" in error


def test_a_figure_that_cannot_be_written_is_refused_before_the_work(
    lengths: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("hydraulis.cli.options.load_profile")
    assert main(options(lengths, "--figure", "missing/c.png")) == 2
    assert capsys.readouterr().err.startswith("hydraulis: error [file_unwritable]: file 'missing/c.png' ")


@pytest.mark.parametrize(
    "more",
    [
        ["--slow", "5"],
        ["--slow", "x=2"],
        ["--slow", "5=fast"],
        ["--figure", "c.jpg"],
        ["--layer-plans", "65536"],
        ["--layer-splits", "65536"],
    ],
)
def test_wrong_arguments_are_refused(
    lengths: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    assert main(options(lengths, *more)) == 2
    assert more[1] in capsys.readouterr().err


def test_the_kinds_of_nodes_are_listed_with_their_rates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("\n".join(["900"] * 50))
    given = ["simulate", "--profile", "analytic:llama-7b-a800:A100-80GB", "--nodes", "1xA100-80GB;1xH20"]
    batches = ["--lengths", str(path), "--tokens-per-batch", "20000", "--count", "1"]
    assert main([*given, *batches, "--compare", "4x<tp4>"]) == 0
    text = capsys.readouterr().out
    assert (
        "on 16 GPUs\n1 x 8 A100-80GB, ranks 0-7: rate 1.00, 86 GB\n1 x 8 H20-96GB, ranks 8-15: rate 0."
        in text
    )
