"""Write docs/errors.md from the error codes of the core and the package; `make errors-page` runs it."""

import sys
import textwrap
from pathlib import Path

from hydraulis._core import error_codes
from hydraulis.errors import CODES, ErrorCode

PAGE = Path(__file__).parent.parent / "docs/errors.md"
WIDTH = 110

INTRODUCTION = """\
# Errors

Every error of Hydraulis is a `hydraulis.HydraulisError` with a stable `code`; its message may change. Two
subclasses are `ValueError`s too:

- `InvalidInputError`: a value is invalid; correct it.
- `InfeasibleError`: the input is valid and has no plan; change the cluster, the memory or the batch.
- `HydraulisError` itself: the run or its machine failed.

A command prints `hydraulis: error [code]: message` and ends with exit code 2, or 3 for `lost_rank`. Under
torchrun a run prints `hydraulis.train: error [code]: message` once; torchrun then adds its own report,
repeats the message as `refused [code]: message`, and ends with 1.

    try:
        plan = planner.plan(lengths)
    except hydraulis.HydraulisError as error:
        if error.code != "sequence_too_long":
            raise

`make errors-page` writes this page from `python/hydraulis/errors.py` and
`crates/hydraulis-core/src/error/codes.rs`.
"""


def all_codes() -> dict[str, ErrorCode]:
    """Give every code in alphabetical order.

    Raises:
        ValueError: Both tables define the same code.
    """
    core = {name: ErrorCode(meaning, remedy) for name, meaning, remedy in error_codes()}
    if twice := core.keys() & CODES.keys():
        message = f"codes {sorted(twice)} are defined in both tables; define each once"
        raise ValueError(message)
    return dict(sorted({**core, **CODES}.items()))


def page() -> str:
    """Give the text of docs/errors.md."""
    return "\n".join([INTRODUCTION, *(_section(name, *code) for name, code in all_codes().items())])


def _section(name: str, meaning: str, remedy: str) -> str:
    paragraphs = [_wrapped(meaning), _wrapped(f"**Remedy.** {remedy}")]
    return "\n".join([f"## `{name}`\n", *paragraphs])


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}: {len(all_codes())} codes\n")
