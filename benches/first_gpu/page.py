"""The results of all parts, as a file for programs and as a page."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benches.first_gpu.judgement import Verdict
from benches.first_gpu.runner import Outcome

VERDICTS, PAGE = "verdicts.json", "verdicts.md"
# Lines of a part's output that the page shows if the part did not pass.
_TAIL = 30


def write(
    folder: Path, machine: Mapping[str, Any], verdicts: Sequence[Verdict], outcomes: Mapping[str, Outcome]
) -> None:
    """Write both; called after each part, so that an interruption loses nothing."""
    parts = [_without_output(one) for one in outcomes.values()]
    document = {"machine": machine, "verdicts": list(map(dataclasses.asdict, verdicts)), "parts": parts}
    (folder / VERDICTS).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    (folder / PAGE).write_text(page(machine, verdicts, outcomes), encoding="utf-8")


def read_outcomes(folder: Path) -> dict[str, Outcome]:
    """Return the outcomes of an earlier start in the same folder, with their logs."""
    path = folder / VERDICTS
    if not path.is_file():
        return {}
    parts = json.loads(path.read_text(encoding="utf-8"))["parts"]
    outcomes = [Outcome(**part, output=_log(folder, part["part"])) for part in parts]
    return {one.part: one for one in outcomes}


def page(machine: Mapping[str, Any], verdicts: Sequence[Verdict], outcomes: Mapping[str, Outcome]) -> str:
    """Return the page, in Markdown."""
    count = {
        name: sum(one.judgement == name for one in verdicts) for name in ("holds", "fails", "not settled")
    }
    summary = (
        f"{count['holds']} of {len(verdicts)} claims hold, {count['fails']} fail, "
        f"{count['not settled']} are not settled."
    )
    lines = [
        "# First minutes on a device",
        "",
        summary,
        "",
        "| claim | verdict | evidence |",
        "|---|---|---|",
    ]
    lines += [f"| {one.claim} | **{one.judgement}** | {_cell(one.evidence)} |" for one in verdicts]
    lines += ["", "## Parts", "", "| part | end | seconds | note |", "|---|---|---|---|"]
    lines += [
        f"| {one.part} | {one.status} | {one.seconds:.0f} | {_cell(one.note)} |" for one in outcomes.values()
    ]
    lines += ["", "## Machine", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {_cell(str(value))} |" for name, value in machine.items()]
    for one in outcomes.values():
        if one.status not in ("passed", "not run"):
            tail = one.output.splitlines()[-_TAIL:]
            lines += ["", f"## End of {one.part}", "", "```text", *tail, "```"]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _without_output(outcome: Outcome) -> dict[str, Any]:
    fields = dataclasses.asdict(outcome)
    # The log has it.
    del fields["output"]
    return fields


def _log(folder: Path, part: str) -> str:
    log = folder / f"{part}.log"
    return log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
