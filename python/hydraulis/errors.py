"""The exceptions of the package: one tree, each with a stable code.

`docs/errors.md` lists every code with its cause and what to do about it.
"""

from collections.abc import Callable
from functools import partial
from typing import Self


class HydraulisError(Exception):
    """Anything that Hydraulis refuses; `code` is stable, the message may be reworded.

    Attributes:
        code: of the kind of refusal.
        is_everywhere: whether every rank of a run raises it at the same place, so that they may meet again;
            false where that is not certain.
    """

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code
        self.is_everywhere = False

    def __reduce__(self) -> tuple[Callable[[str], Self], tuple[str]]:
        """Keep the code when the error crosses a process boundary."""
        return partial(type(self), code=self.code), (str(self),)


class InvalidInputError(HydraulisError, ValueError):
    """A field, a length or a file is not what it must be."""


class InfeasibleError(HydraulisError, ValueError):
    """The input is well-formed, and no plan exists for it on this cluster under this memory."""
