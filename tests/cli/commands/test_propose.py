import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from cli.invocation import assert_refused, drawn_options, printed_document, write_drawn_lengths
from cli.reports import collect_reports, interrupt_at
from hydraulis.cli.commands.propose import _List, _Row
from hydraulis.cli.exit import EXIT_INTERRUPTED
from hydraulis.cli.main import main


@pytest.fixture(scope="module")
def lengths(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_drawn_lengths(tmp_path_factory.mktemp("lengths"))


def options(lengths: Path, *more: str) -> list[str]:
    return drawn_options("propose", lengths, 4, *more)


def test_prints_a_line_for_each_strategy_and_the_list(
    lengths: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(options(lengths, "-k", "3")) == 0
    text = capsys.readouterr().out
    rows = [line for line in text.splitlines() if "x<" in line and not line.startswith("for ")]
    names = text.split('--strategies "')[1].split('"')[0].split(";")
    assert [row.split()[-1] for row in rows] == names
    assert 1 <= len(names) <= 3
    (toml,) = re.findall(r"^for a run's TOML: (.*)$", text, re.MULTILINE)
    assert tomllib.loads(toml) == {"planner": {"strategies": names}}
    assert "over a search for each batch (" in text


def test_means_are_of_the_named_batches(lengths: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, of = options(lengths), "4 batches and 12 resampled from them"
    found = printed_document(capsys, [*arguments, "--json"])
    batches = found["batches"] + found["resampled_batches"]
    assert main(arguments) == 0
    assert f"mean iteration of {of}: {found['expected_ms']:.1f} ms, " in capsys.readouterr().out
    assert batches == 16
    # All batches have the same weight.
    counts = [batches * one["share"] for one in found["strategies"]]
    assert counts == pytest.approx([round(number) for number in counts])


@pytest.mark.parametrize(
    ("ms", "row", "sentence"),
    [
        (990.0, "-1.00 %", "990.0 ms, 1.00 % below a search"),
        (999.9, "-0.01 %", "999.9 ms, 0.01 % below a search"),
        # A difference in the last bits counts as equal.
        (999.999999, "+0.00 %", "1000.0 ms, 0.00 % over a search"),
        (1010.0, "+1.00 %", "1010.0 ms, 1.00 % over a search"),
    ],
)
def test_a_list_faster_than_the_search_is_below_it(ms: float, row: str, sentence: str) -> None:
    found = _List(
        memory="per_micro_batch",
        batches=1,
        resampled_batches=3,
        strategies=[_Row("4x<1>", 1.0, ms)],
        expected_ms=ms,
        search_ms=1000.0,
        longest_admitted=8,
        extrapolation=None,
    ).explain()
    assert f" {row}  4x<1>\n" in found
    assert f": {sentence} for each batch (1000.0 ms)\n" in found
    assert "of 1 batch and 3 resampled from them: " in found


def test_a_difference_that_rounds_to_zero_is_not_below() -> None:
    found = _List(
        memory="per_micro_batch",
        batches=1,
        resampled_batches=0,
        strategies=[_Row("4x<1>", 1.0, 19_999.5)],
        expected_ms=19_999.5,
        search_ms=20_000.0,
        longest_admitted=8,
        extrapolation=None,
    ).explain()
    assert " +0.00 %  4x<1>\n" in found
    assert ": 19999.5 ms, 0.00 % over a search" in found


def test_the_document_is_that_of_the_list(lengths: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = printed_document(capsys, options(lengths, "-k", "2", "--json"))
    assert len(found["strategies"]) == 2
    assert sum(one["share"] for one in found["strategies"]) == pytest.approx(1)
    assert (
        found["expected_ms"] == found["strategies"][-1]["expected_ms"] < found["strategies"][0]["expected_ms"]
    )
    assert found["search_ms"] <= found["expected_ms"] * 1.001
    assert found == printed_document(capsys, options(lengths, "-k", "2", "--json"))
    assert found != printed_document(capsys, options(lengths, "-k", "2", "--json", "--seed", "1"))


def test_a_list_names_its_memory_limit(
    lengths: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    longer = tmp_path / "longer.npy"
    np.save(longer, np.append(np.load(lengths)[:80], [60_000] * 20))
    assert main(options(longer)) == 2
    assert "[sequence_too_long]" in capsys.readouterr().err
    exact = options(longer, "--memory", "in_flight")
    assert main(exact) == 0
    text = capsys.readouterr().out
    assert re.search(r'^for hydraulis plan: --strategies "\S+" --memory in_flight$', text, re.MULTILINE)
    assert text.endswith('planner.memory = "in_flight"\n')
    assert printed_document(capsys, [*exact, "--json"])["memory"] == "in_flight"


def test_the_context_is_admitted(lengths: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = printed_document(capsys, options(lengths, "--context", "40000", "--json"))
    assert found["longest_admitted"] >= 40_000


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (["--context", "50000"], "sequence_too_long"),
        (["--lengths", "missing.txt"], "file_unreadable"),
        (["--profile", "llama-1t"], "profile_unknown"),
    ],
)
def test_a_refusal_is_one_line(
    lengths: Path, capsys: pytest.CaptureFixture[str], more: list[str], code: str
) -> None:
    assert_refused(capsys, options(lengths, *more), code)


def test_an_interrupt_ends_the_command(lengths: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_at(monkeypatch, "searching for each batch")
    assert main(options(lengths)) == EXIT_INTERRUPTED


def test_progress_counts_batches_and_strategies(
    lengths: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = collect_reports(monkeypatch)
    printed_document(capsys, options(lengths, "-k", "2", "--json"))
    assert ("searching for each batch", 0, 16) in reports
    assert ("choosing strategies", 1, 2) in reports


def test_the_planner_accepts_the_list(lengths: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(options(lengths, "-k", "2")) == 0
    names = capsys.readouterr().out.split('--strategies "')[1].split('"')[0]
    plan = ["plan", "--profile", "llama-32b-a800", "--gpus", "64", "--lengths", str(lengths)]
    assert main([*plan, "--strategies", names, "--json"]) == 0
    candidates = json.loads(capsys.readouterr().out)["candidates"]
    assert [one["strategy"] for one in candidates] == names.split(";")
