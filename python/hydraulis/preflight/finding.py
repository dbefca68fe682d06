"""A finding: the result of one check of a run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from hydraulis.errors import HydraulisError

Status: TypeAlias = Literal["ok", "warning", "later", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check.

    Attributes:
        name: Name of the check.
        status: `ok`; `warning` if the run would start, but probably not as intended; `later` if the answer
            needs the run itself or follows from an earlier refusal; `refused` if the run would be refused.
        text: Description of the result.
        code: Error code of a refusal; None otherwise.
    """

    name: str
    status: Status
    text: str
    code: str | None = None


# A check returns its status and text, or raises the error that would refuse the run.
Check: TypeAlias = Callable[[], tuple[Status, str]]


def with_warnings(text: str, *warnings: str) -> tuple[Status, str]:
    """Append the warnings that are not empty; the status is `warning` if there is one, else `ok`."""
    given = [one for one in warnings if one]
    return ("warning" if given else "ok"), "; ".join([text, *given])


def run_check(name: str, check: Check) -> Finding:
    """Run a check; an error it raises becomes a refusal."""
    try:
        status, text = check()
    except HydraulisError as error:
        return Finding(name=name, status="refused", text=" ".join(str(error).split("\n")), code=error.code)
    return Finding(name=name, status=status, text=text)
