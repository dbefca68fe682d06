"""`hydraulis bench`: the table of the core's program, its refusals with codes, its options on the page."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.invocation import assert_refused
from helpers import ROOT, at_least
from hydraulis._core import plan_bench
from hydraulis.cli.exit import EXIT_INTERRUPTED
from hydraulis.cli.main import main
from hydraulis.errors import InfeasibleError, InvalidInputError

CLUSTER = ["--profile", "llama-32b-a800", "--gpus", "16"]
DRAWN = ["--lengths", "lognormal:6.2,1.2,8192", "--tokens-per-batch", "20000", "--count", "2"]
PLANNERS = ["--planner", "search,longest-first"]


def test_it_prints_a_row_for_each_planner(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *CLUSTER, *DRAWN, *PLANNERS]) == 0
    output = capfd.readouterr().out
    assert "search" in output
    assert "longest-first" in output


def test_its_records_are_those_of_the_program(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *CLUSTER, *DRAWN, *PLANNERS, "--json", "-"]) == 0
    records = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [record["planner"] for record in records] == ["search", "longest-first"] * 2
    assert all(record["status"] == "ok" for record in records)


def test_its_help_has_every_option_of_the_page(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--help"]) == 0
    printed = capfd.readouterr().out
    assert "Usage: hydraulis bench" in printed
    page = (ROOT / "docs/plan-bench.md").read_text(encoding="utf-8")
    options = page.partition("\n## Batches")[2].partition("\n## Scale")[0]
    for option in at_least(8, set(re.findall(r"`(--[a-z-]+)", options))):
        assert option in printed


REFUSED = {
    "option_invalid": [*CLUSTER, *DRAWN, *PLANNERS, "--coutn", "3"],
    "file_unreadable": [*CLUSTER, "--batches", "no/such/file", *PLANNERS],
    "profile_unknown": ["--profile", "llama-1t", "--gpus", "16", *DRAWN, *PLANNERS],
}


@pytest.mark.parametrize("code", REFUSED)
def test_a_refusal_is_one_line_with_a_code(code: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert_refused(capfd, ["bench", *REFUSED[code]], code)


def test_too_few_lengths_for_the_batches_are_explained(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lengths.txt").write_text("900\n" * 99)
    lengths = ["--lengths", str(tmp_path / "lengths.txt"), "--tokens-per-batch", "20000"]
    assert main(["bench", *CLUSTER, *lengths, *PLANNERS]) == 2
    error = capfd.readouterr().err
    assert "the lengths fill 4 batches" in error
    assert "and a file is read once, in order: lower --count" in error


def test_a_misspelled_option_is_named_with_the_nearest_one(capfd: pytest.CaptureFixture[str]) -> None:
    main(["bench", *REFUSED["option_invalid"]])
    message = capfd.readouterr().err
    assert "--coutn" in message
    assert "'--count'" in message
    assert message.endswith("; see --help\n")


def test_errors_of_the_core_keep_their_class(tmp_path: Path) -> None:
    batches = tmp_path / "batches.json"
    batches.write_text("[[500], [20, 500000]]", encoding="utf-8")
    with pytest.raises(InfeasibleError) as caught:
        plan_bench(["bench", *CLUSTER, "--batches", str(batches), "--planner", "hydraulis"])
    assert caught.value.code == "sequence_too_long"
    with pytest.raises(InvalidInputError):
        plan_bench(["bench", *REFUSED["file_unreadable"]])


def test_ctrl_c_ends_it_between_two_plans() -> None:
    words = [*CLUSTER, *DRAWN[:-1], "100000", "--planner", "search", "--json", "-"]
    with subprocess.Popen(
        [sys.executable, "-m", "hydraulis", "bench", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        # The comparison has begun.
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == EXIT_INTERRUPTED
    assert errors == b"hydraulis: interrupted\n"
