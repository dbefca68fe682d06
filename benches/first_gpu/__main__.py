"""Settles the claims about CUDA devices in the first minutes on one.

    python -m benches.first_gpu [--only PART ...] [--folder FOLDER] [--budget SECONDS]

Each part runs by itself with a time limit, and the next one runs whatever its end was. The folder has a log
and the figures of each part, `verdicts.json`, and `verdicts.md` with a verdict on each claim. It is written
after each part; a later start with the same folder and other parts adds to it. This Python needs torch with
CUDA; the rest is installed or built only where it lacks.

Exit status: 0 if every claim holds, 1 if one fails or is not settled, 2 without a device.
"""

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from benches.first_gpu.judgement import Claim, verdicts
from benches.first_gpu.plan import CLAIMS, PARTS
from benches.first_gpu.prepare import UnpreparedError, prepare, require_device
from benches.first_gpu.runner import Outcome, Part, run_part

from benches.first_gpu import page

ROOT = Path(__file__).parents[2]
# Below the 20 minutes that all parts and the build of the extension may take.
BUDGET_S = 1140.0


def settle(parts: Sequence[Part], claims: Sequence[Claim], folder: Path, budget_s: float) -> bool:
    """Run the parts, and write verdicts after each of them.

    Args:
        parts: Parts to run, in this order.
        claims: All claims; those of other parts keep the verdicts of earlier starts.
        folder: Folder of the results.
        budget_s: Most seconds of all parts together.

    Returns:
        Whether every claim holds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = page.read_outcomes(folder)
    end = time.monotonic() + budget_s
    for part in parts:
        _say(f"{part.name}: at most {part.limit_s:.0f} s")
        outcome = run_part(part, folder, end - time.monotonic())
        outcomes[part.name] = outcome
        _say(f"{part.name}: {outcome.status} after {outcome.seconds:.0f} s, {outcome.note}")
        _write(folder, claims, outcomes)
    for one in verdicts(claims, outcomes):
        _say(f"{one.judgement:<11}  {one.claim}: {one.evidence}")
    _say(f"results: {folder}")
    return all(one.judgement == "holds" for one in verdicts(claims, outcomes))


def _write(folder: Path, claims: Sequence[Claim], outcomes: dict[str, Outcome]) -> None:
    machine = outcomes["machine"].figures if "machine" in outcomes else {}
    page.write(folder, machine, verdicts(claims, outcomes), outcomes)


def main() -> int:
    """Prepare the checkout and settle the claims."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="benches.first_gpu", description=__doc__, formatter_class=layout)
    names = [part.name for part in PARTS]
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="PART", help=", ".join(names)
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "target/first-gpu")
    parser.add_argument("--budget", type=float, default=BUDGET_S, metavar="SECONDS")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _stop)
    start = time.monotonic()
    try:
        _say(f"device: {require_device()}")
        prepare(ROOT, ROOT / "target/first-gpu-packages")
    except UnpreparedError as error:
        sys.stderr.write(f"first-gpu: {error}\n")
        return 2
    left_s = arguments.budget - (time.monotonic() - start)
    chosen = [part for part in PARTS if part.name in arguments.only]
    return 0 if settle(chosen, CLAIMS, arguments.folder, left_s) else 1


def _stop(_number: int, _frame: object) -> NoReturn:
    # As an exception it ends the processes of the part too.
    raise KeyboardInterrupt


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
