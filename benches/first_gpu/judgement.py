"""Claims about CUDA devices, and their verdicts from the outcomes of parts."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benches.first_gpu.runner import Outcome

Judgement = Literal["holds", "fails", "not settled"]
# A line of `pytest -v`: the test, and its result.
_RESULT = re.compile(r"^(\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED)\b", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on a claim.

    Attributes:
        claim: The claim, as a sentence.
        judgement: `holds`, `fails`, or `not settled` if the part that decides it did not get that far.
        evidence: Numbers or names that the judgement rests on.
    """

    claim: str
    judgement: Judgement
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim, and the part that decides it.

    Attributes:
        text: The claim, as a sentence.
        part: Name of the part.
        judge: Function that judges the part's outcome and returns the evidence.
    """

    text: str
    part: str
    judge: Callable[[Outcome], tuple[Judgement, str]]


def verdicts(claims: Sequence[Claim], outcomes: Mapping[str, Outcome]) -> list[Verdict]:
    """Judge every claim; without an outcome, or if the judge itself fails, it is not settled."""
    return [_verdict(claim, outcomes.get(claim.part)) for claim in claims]


def _verdict(claim: Claim, outcome: Outcome | None) -> Verdict:
    judgement: Judgement = "not settled"
    if outcome is None or outcome.status == "not run":
        evidence = f"part '{claim.part}' was not run"
    else:
        try:
            judgement, evidence = claim.judge(outcome)
        except Exception as error:
            # One outcome that cannot be read must not hide the other verdicts.
            evidence = f"its figures cannot be read: {type(error).__name__}: {error}"
    return Verdict(claim=claim.text, judgement=judgement, evidence=evidence)


def by_exit(outcome: Outcome) -> tuple[Judgement, str]:
    """Judge by the exit status: a part that was ended after its limit has not settled its claim."""
    if outcome.status == "passed":
        return "holds", f"{outcome.note} after {outcome.seconds:.0f} s"
    return ("not settled" if outcome.status == "timed out" else "fails"), outcome.note


def by_tests(pattern: str = "") -> Callable[[Outcome], tuple[Judgement, str]]:
    """Return a judge of the tests whose names match a pattern.

    One failed test refutes the claim. Passed ones prove it if the part came to its end.
    """

    def judge(outcome: Outcome) -> tuple[Judgement, str]:
        results = {
            name: result for name, result in _RESULT.findall(outcome.output) if re.search(pattern, name)
        }
        passed = [name for name, result in results.items() if result == "PASSED"]
        failed = [name for name, result in results.items() if result in ("FAILED", "ERROR")]
        if failed:
            listed = ", ".join(name.rpartition("::")[2] for name in failed[:4])
            return "fails", f"{len(failed)} of {len(passed) + len(failed)} tests fail: {listed}"
        ended = outcome.status in ("passed", "failed")
        if passed and ended:
            return "holds", f"{len(passed)} tests pass"
        skipped = list(results.values()).count("SKIPPED")
        return "not settled", f"{len(passed)} tests pass, {skipped} are skipped; {outcome.note}"

    return judge


def by_figures(
    judge: Callable[[dict[str, Any]], tuple[bool, str]],
) -> Callable[[Outcome], tuple[Judgement, str]]:
    """Return a judge of the figures that a part wrote."""

    def judged(outcome: Outcome) -> tuple[Judgement, str]:
        if not outcome.figures:
            return "not settled", f"no figures; {outcome.last_words}"
        holds, evidence = judge(outcome.figures)
        return ("holds" if holds else "fails"), evidence

    return judged
