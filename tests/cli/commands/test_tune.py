import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from hydraulis.cli.exit import EXIT_REFUSED
from hydraulis.cli.main import main

OPTIONS = ["tune", "--profile", "llama-32b-a800", "--gpus", "64", "--length", "8192"]


def document(capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, object]:
    assert main([*OPTIONS, *more, "--json"]) == 0
    text = capsys.readouterr().out
    assert text.count("\n") == 1
    found: dict[str, object] = json.loads(text)
    return found


def test_the_best_of_several_batches_has_the_most_tokens_per_second(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = document(capsys, "--batch", "64", "16", "100")
    plans = found["plans"]
    assert isinstance(plans, list)
    assert [plan["global_batch"] for plan in plans] == [64, 16, 100]
    assert found["best"] == max(range(3), key=lambda place: plans[place]["tokens_per_s"])
    for plan in plans:
        rate = plan["global_batch"] * 8192 / plan["step_ms"] * 1e3
        assert plan["tokens_per_s"] == pytest.approx(rate)
        replicas = int(plan["strategy"].partition("x")[0])
        assert sum(plan["micro_batches"]) == -(-plan["global_batch"] // replicas)


def test_the_table_ends_with_settings_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*OPTIONS, "--batch", "64", "--memory", "in_flight"]) == 0
    text = capsys.readouterr().out
    settings = [line.partition(": ")[2] for line in text.splitlines() if " = " in line]
    read = tomllib.loads("\n".join(settings))
    (strategy,) = read["planner"]["strategies"]
    assert f"  {strategy}: " in text
    assert read["planner"]["memory"] == "in_flight"
    assert read["data"]["tokens_per_batch"] == 64 * 8192


def test_an_analytic_profile_has_every_kind_of_checkpointing(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["tune", "--gpus", "8", "--length", "16384", "--batch", "16", "--json"]
    strategies = []
    for profile in ("analytic:llama-7b-a800:A100-40GB", "analytic:llama-7b-a800:A100-40GB,full"):
        assert main([*options, "--profile", profile]) == 0
        (plan,) = json.loads(capsys.readouterr().out)["plans"]
        strategies.append((plan["step_ms"], plan["strategy"]))
    assert strategies[0] <= strategies[1]
    assert strategies[1][1].endswith(",full>")
    assert not strategies[0][1].endswith(",full>")


def test_the_printed_options_plan_the_same_batch(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cluster = ["--gpus", "8"]
    profile = "analytic:llama-7b-a800:A100-40GB"
    assert main(["tune", "--profile", profile, *cluster, "--length", "4096", "--batch", "7"]) == 0
    text = capsys.readouterr().out
    (options,) = re.findall(r"^for hydraulis plan: (.*)$", text, re.MULTILINE)
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("4096\n" * 7)
    assert main(["plan", *shlex.split(options), *cluster, "--lengths", str(lengths), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert ":10/32>" in plan["strategy"]
    assert f"best: 7 sequences in {plan['iteration_ms']:,.1f} ms" in text


def test_less_memory_is_never_faster_and_a_gpu_has_no_more_than_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert document(capsys, "--batch", "64", "--memory-gib", "500") == document(capsys, "--batch", "64")
    times = []
    for gib in ("80", "60", "50"):
        plans = document(capsys, "--batch", "64", "--memory-gib", gib)["plans"]
        assert isinstance(plans, list)
        times += [plan["step_ms"] for plan in plans]
    assert times == sorted(times)
    assert times[0] < times[-1]
    assert main([*OPTIONS, "--batch", "64", "--memory-gib", "1"]) == EXIT_REFUSED
    assert "[scheme_too_large]: --memory-gib 1: no scheme of" in capsys.readouterr().err


def test_a_length_that_does_not_fit_is_named_by_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["tune", "--profile", "llama-32b-a800", "--gpus", "64", "--length", "819200", "--batch", "64"]
    assert main(options) == EXIT_REFUSED
    assert capsys.readouterr().err == (
        "hydraulis: error [sequence_too_long]: --length 819200: at most 43,520 tokens fit: lower --length, "
        "or raise --gpus\n"
    )


def test_batches_above_the_limit_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*OPTIONS, "--batch", "64", "100001"]) == EXIT_REFUSED
    said = capsys.readouterr().err
    assert "[argument_invalid]: a global batch has 100,001 sequences, and the limit is 100,000" in said


def test_the_table_has_the_micro_batches_of_a_replica(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*OPTIONS, "--batch", "16"]) == 0
    text = capsys.readouterr().out
    assert "strategy, micro-batches of the fullest replica" in text
    assert re.search(r">: \d+ of \d+ sequences?", text)
