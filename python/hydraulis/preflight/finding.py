"""What one look at a run found."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from hydraulis.errors import HydraulisError

Status: TypeAlias = Literal["ok", "warning", "later", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the account.

    Attributes:
        name: what was looked at.
        status: `ok`; `warning` where the run would start, but hardly as it is meant; `later` where only the
            run itself can tell, or a refusal above comes first; `refused` where the run would be.
        text: what was found.
        code: of the refusal; None if it is none.
    """

    name: str
    status: Status
    text: str
    code: str | None = None


def warned(text: str, *warnings: str) -> tuple[Status, str]:
    """Make a look's answer: ok, or a warning where one is no empty text."""
    given = [one for one in warnings if one]
    return ("warning" if given else "ok"), "; ".join([text, *given])


Look: TypeAlias = Callable[[], tuple[Status, str]]


def find(name: str, look: Look) -> Finding:
    """Look, and take a refusal as what was found."""
    try:
        status, text = look()
    except HydraulisError as error:
        return Finding(name=name, status="refused", text=" ".join(str(error).split("\n")), code=error.code)
    return Finding(name=name, status=status, text=text)
