"""The driver of the first minutes on a device, with parts of its own: it survives each of them."""

import importlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from helpers import ROOT, at_least

LONG_S = 600
PASSES = "print('fine'); open({json!r}, 'w').write('{{\"value\": 3}}')"
# A process that is asked to end, and goes on.
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); "
    f"time.sleep({LONG_S})"
)
HANGS = (
    "import subprocess, sys, time\n"
    f"child = subprocess.Popen([sys.executable, '-c', {STUBBORN!r}], stdout=subprocess.PIPE)\n"
    "child.stdout.readline()\n"
    "print('child', child.pid, flush=True)\n"
    f"time.sleep({LONG_S})"
)
CRASHES = "import os, signal; print('last words', flush=True); os.kill(os.getpid(), signal.SIGSEGV)"
FAILS = "print('no good'); raise SystemExit(3)"
TESTS = (
    "print('tests/a.py::test_of_two[2-ranks] PASSED [ 25%]')\n"
    "print('tests/a.py::test_of_four[4-ranks] FAILED [ 50%]')\n"
    "print('tests/a.py::test_of_eight[8-ranks] SKIPPED (needs a device) [ 75%]')\n"
    "raise SystemExit(1)"
)


@pytest.fixture(scope="module")
def modules() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        names = ("__main__", "judgement", "page", "plan", "prepare", "runner")
        loaded = {name.strip("_"): importlib.import_module(f"benches.first_gpu.{name}") for name in names}
        yield type("Modules", (), loaded)


def part(modules: Any, name: str, program: str, folder: Path, limit_s: float = 60.0) -> Any:
    text = program.format(json=str(folder / f"{name}.json")) if "{json" in program else program
    return modules.runner.Part(name=name, command=(sys.executable, "-c", text), limit_s=limit_s)


@pytest.fixture(scope="module")
def settled(modules: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """Run a part of each kind; give the folder, the verdicts and the page."""
    folder = tmp_path_factory.mktemp("first-gpu")
    programs = {"passes": PASSES, "fails": FAILS, "hangs": HANGS, "crashes": CRASHES, "tests": TESTS}
    parts = [
        part(modules, name, text, folder, limit_s=2.0 if name == "hangs" else 60.0)
        for name, text in programs.items()
    ]
    claim, claims = modules.judgement.Claim, modules.judgement
    modules.runner._GRACE_S = 0.3
    listed = [
        *(claim(text=f"It {name}", part=name, judge=claims.by_exit) for name in programs if name != "tests"),
        claim(text="Three", part="passes", judge=claims.by_figures(lambda f: (f["value"] == 3, "3"))),
        claim(text="Four", part="passes", judge=claims.by_figures(lambda f: (f["value"] == 4, "not 4"))),
        claim(text="Lost", part="passes", judge=claims.by_figures(lambda f: (f["no such"], ""))),
        *(claim(text=f"{n} ranks", part="tests", judge=claims.by_tests(f"{n}-ranks")) for n in (2, 4, 8)),
        claim(text="Never run", part="missing", judge=claims.by_exit),
    ]
    assert modules.main.settle(parts, listed, folder, budget_s=120.0) is False
    document = json.loads((folder / "verdicts.json").read_text())
    return folder, document, (folder / "verdicts.md").read_text()


def test_every_part_runs_whatever_became_of_the_one_before(settled: tuple[Path, dict[str, Any], str]) -> None:
    ends = {one["part"]: one["status"] for one in settled[1]["parts"]}
    assert ends == {
        "passes": "passed",
        "fails": "failed",
        "hangs": "timed out",
        "crashes": "crashed",
        "tests": "failed",
    }


def test_each_claim_has_the_verdict_of_its_part(settled: tuple[Path, dict[str, Any], str]) -> None:
    found = {one["claim"]: one["judgement"] for one in settled[1]["verdicts"]}
    assert found == {
        "It passes": "holds",
        "It fails": "fails",
        "It hangs": "not settled",
        "It crashes": "fails",
        "Three": "holds",
        "Four": "fails",
        "Lost": "not settled",
        "2 ranks": "holds",
        "4 ranks": "fails",
        "8 ranks": "not settled",
        "Never run": "not settled",
    }
    evidence = {one["claim"]: one["evidence"] for one in settled[1]["verdicts"]}
    assert "SIGSEGV" in evidence["It crashes"]
    assert "status 3" in evidence["It fails"]
    assert "limit of 2 s" in evidence["It hangs"]
    assert "KeyError" in evidence["Lost"]
    assert "test_of_four" in evidence["4 ranks"]
    assert "0 tests pass, 1 are skipped" in evidence["8 ranks"]


def test_a_part_beyond_its_limit_leaves_no_process(settled: tuple[Path, dict[str, Any], str]) -> None:
    folder, document, _ = settled
    child = re.search(r"child (\d+)", (folder / "hangs.log").read_text())
    assert child is not None
    assert not Path(f"/proc/{child[1]}").exists() or " Z " in Path(f"/proc/{child[1]}/stat").read_text()
    (hung,) = (one for one in document["parts"] if one["part"] == "hangs")
    assert hung["seconds"] < LONG_S / 4


def test_a_part_beyond_its_limit_shows_the_failures_of_its_tests(
    modules: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules.runner, "_GRACE_S", 30.0)
    tests = tmp_path / "test_hanging.py"
    tests.write_text(
        f"import time\ndef test_fails(): assert 'this' == 'that'\ndef test_hangs(): time.sleep({LONG_S})\n"
    )
    command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tests))
    part = modules.runner.Part(name="hanging", command=command, limit_s=8.0)
    outcome = modules.runner.run_part(part, tmp_path, left_s=60.0)
    assert outcome.status == "timed out"
    assert "AssertionError: assert 'this' == 'that'" in outcome.output


def test_the_page_shows_claims_parts_and_the_end_of_what_failed(
    settled: tuple[Path, dict[str, Any], str],
) -> None:
    folder, _, page = settled
    assert "| It passes | **holds** |" in page
    assert "3 of 11 claims hold, 4 fail, 4 are not settled." in page
    assert "last words" in page
    assert "no good" in page
    assert "fine" not in page
    assert (folder / "passes.log").read_text() == "fine\n"


def test_a_later_start_adds_to_the_folder(modules: Any, tmp_path: Path) -> None:
    claim, by_exit = modules.judgement.Claim, modules.judgement.by_exit
    claims = [claim(text=name, part=name, judge=by_exit) for name in ("first", "second")]
    parts = [part(modules, name, "print('it ran')", tmp_path) for name in ("first", "second")]
    assert modules.main.settle(parts[:1], claims, tmp_path, budget_s=60.0) is False
    assert modules.main.settle(parts[1:], claims, tmp_path, budget_s=60.0) is True
    outcomes = modules.page.read_outcomes(tmp_path)
    assert {name: one.output for name, one in outcomes.items()} == dict.fromkeys(
        ("first", "second"), "it ran\n"
    )


def test_parts_without_time_left_are_not_run(modules: Any, tmp_path: Path) -> None:
    parts = [part(modules, "slow", f"import time; time.sleep({LONG_S})", tmp_path, LONG_S)]
    parts += [part(modules, "late", "print('it ran')", tmp_path)]
    begin = time.monotonic()
    claims = [modules.judgement.Claim(text="late", part="late", judge=modules.judgement.by_exit)]
    assert modules.main.settle(parts, claims, tmp_path, budget_s=1.0) is False
    assert time.monotonic() - begin < LONG_S / 4
    outcomes = modules.page.read_outcomes(tmp_path)
    assert [one.status for one in outcomes.values()] == ["timed out", "not run"]
    assert not (tmp_path / "late.log").exists()


def test_a_command_that_does_not_exist_is_a_failure(modules: Any, tmp_path: Path) -> None:
    missing = modules.runner.Part(name="missing", command=("/no/such/program",), limit_s=5.0)
    outcome = modules.runner.run_part(missing, tmp_path, 5.0)
    assert outcome.status == "failed"
    assert "did not start" in outcome.note


def test_passed_tests_settle_nothing_if_the_part_was_ended(modules: Any) -> None:
    output = "tests/a.py::test_it[2-ranks] PASSED [ 10%]\n"
    judge = modules.judgement.by_tests("2-ranks")
    for status, judgement in (("passed", "holds"), ("timed out", "not settled"), ("crashed", "not settled")):
        outcome = modules.runner.Outcome(part="p", status=status, seconds=1.0, note="", output=output)
        assert judge(outcome)[0] == judgement


def test_without_a_device_it_says_so_at_once(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "benches.first_gpu", "--folder", str(tmp_path / "results")],
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 2
    assert "there is no CUDA device" in ended.stderr
    assert not (tmp_path / "results").exists()


def test_each_claim_has_a_part_and_the_limits_leave_time_for_each(modules: Any) -> None:
    names = [one.name for one in modules.plan.PARTS]
    assert len(set(names)) == len(names)
    assert {claim.part for claim in modules.plan.CLAIMS} | {"machine", "rows"} == set(names)
    # The parts before the benches, at their limits, leave the benches some time.
    assert sum(one.limit_s for one in modules.plan.PARTS[: names.index("step-1b")]) < modules.main.BUDGET_S
    assert modules.main.BUDGET_S < 20 * 60


def test_each_claim_about_tests_names_some(modules: Any) -> None:
    """Collect the tests of the parts, and let them pass: each claim about them then holds."""
    for name in ("ranks", "adversaries", "one-rank"):
        (own,) = (one for one in modules.plan.PARTS if one.name == name)
        ended = subprocess.run(
            [*own.command, "--collect-only", "-q", "-q"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        collected = at_least(3, re.findall(r"^tests/\S+::.+$", ended.stdout, re.MULTILINE))
        output = "".join(f"{test} PASSED [ 1%]\n" for test in collected)
        outcome = modules.runner.Outcome(part=name, status="passed", seconds=1.0, note="", output=output)
        claims = at_least(3, [claim for claim in modules.plan.CLAIMS if claim.part == name])
        assert [one.judgement for one in modules.judgement.verdicts(claims, {name: outcome})] == [
            "holds"
        ] * len(claims)


def test_the_memory_checker_runs_a_step(modules: Any, tmp_path: Path) -> None:
    """Let a checker that only lists the tests take the place of compute-sanitizer."""
    checker = tmp_path / "compute-sanitizer"
    checker.write_text('#!/bin/sh\nshift 6\nexec "$@" --collect-only\n', encoding="utf-8")
    checker.chmod(0o755)
    (own,) = (one for one in modules.plan.PARTS if one.name == "memcheck")
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    ended = subprocess.run(
        own.command,
        cwd=ROOT,
        env=os.environ | own.environment | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert "test_iterations_equal_the_cpus[float32-<1>-cuda]" in ended.stdout, ended.stderr


def test_figures_are_judged_by_their_numbers(modules: Any) -> None:
    def judged(part: str, figures: dict[str, Any]) -> list[str]:
        outcome = modules.runner.Outcome(part=part, status="passed", seconds=1.0, note="", figures=figures)
        claims = [claim for claim in modules.plan.CLAIMS if claim.part == part]
        return [one.judgement for one in modules.judgement.verdicts(claims, {part: outcome})]

    def step(way: str, tokens_per_s: float, refusal: str | None = None) -> dict[str, Any]:
        return {"way": way, "tokens_per_s": tokens_per_s, "mfu": 0.4, "refusal": refusal}

    others = ("transformers, autocast", "torchtitan's form")
    rows = [step("hydraulis", 100.0), step(others[0], 90.0), step(others[1], 110.0)]
    rows.append(step("hydraulis, compiled", 105.0))
    assert judged("step-1b", {"steps": rows}) == ["holds", "fails"]
    rows[1] = step(others[0], 0.0, "out of memory")
    assert judged("step-8b", {"steps": rows}) == ["not settled", "fails"]
    profile = {"median_time_error": 0.05, "steps": 8, "planned_bytes": 110, "held_bytes": 100}
    assert judged("profile", {"profile": profile}) == ["holds", "holds"]
    worse = profile | {"median_time_error": 0.2, "planned_bytes": 99}
    assert judged("profile", {"profile": worse}) == ["fails", "fails"]
    wasteful = profile | {"planned_bytes": 130}
    assert judged("profile", {"profile": wasteful}) == ["holds", "fails"]
    nccl = {"is_right": {"all_reduce": True}, "nccl": [2, 28, 9], "device_bytes_in_use": 1 << 30}
    assert judged("nccl", nccl) == ["holds"]
    assert judged("nccl", nccl | {"is_right": {"all_reduce": True, "group": False}}) == ["fails"]
    kernel = {"micro_batch": "one long", "kernel": "flash", "both_ms": 1.0, "refusal": None}
    plain = kernel | {"kernel": "plain attention", "both_ms": 2.0}
    assert judged("attention", {"attention": [kernel, plain]}) == ["holds"]
    assert judged("attention", {"attention": [kernel | {"both_ms": 3.0}, plain]}) == ["fails"]
    way = {"piece": "reduce-scatter of 2 ranks", "way": "a way", "ms": 1.0, "refusal": None}
    assert judged("collectives", {"collectives": [way] * 5}) == ["holds"]
    assert judged("collectives", {"collectives": [way] * 4 + [way | {"refusal": "it hangs"}]}) == ["fails"]
    assert judged("collectives", {"collectives": [way] * 3}) == ["fails"]


def test_an_exchange_that_nccl_refuses_refutes_its_claim(modules: Any) -> None:
    (claim,) = (one for one in modules.plan.CLAIMS if one.part == "nccl")
    for status, judgement in (("failed", "fails"), ("crashed", "fails"), ("timed out", "not settled")):
        output = "a traceback\nncclInvalidUsage: Duplicate GPU detected\n\n"
        outcome = modules.runner.Outcome(
            part="nccl", status=status, seconds=1.0, note="its end", output=output
        )
        (verdict,) = modules.judgement.verdicts([claim], {"nccl": outcome})
        assert verdict.judgement == judgement
        assert "its end: ncclInvalidUsage: Duplicate GPU" in verdict.evidence
