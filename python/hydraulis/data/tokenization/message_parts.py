"""The part of a rendered conversation that a template writes for each message.

A template writes messages in loops. `mark_loops` adds calls to a parsed template: the first statement of each
loop writes a mark if the loop's item is a message, and the statement after a loop with messages writes
another one. `PartMarks` answers the calls, and removes the marks from the rendered text.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hydraulis.data.tokenization.template_environment import BEGIN, END
from hydraulis.extras import import_extra

_ENTER, _LEAVE = "_hydraulis_enter_message", "_hydraulis_leave_loop"
_MARK = re.compile(f"{BEGIN}([^{END}]*){END}")
_FIRST, _NEXT, _AFTER = "first", "next", "after"

Message = Mapping[str, Any]


def mark_loops(tree: Any) -> Any:
    """Add the calls to the loops of a parsed template, and return it."""
    nodes: Any = import_extra("jinja2.nodes", "a chat template")
    visitor: Any = import_extra("jinja2.visitor", "a chat template")

    def call(name: str, *arguments: Any) -> Any:
        return nodes.Output([nodes.Call(nodes.Name(name, "load"), list(arguments), [], None, None)])

    class Marker(visitor.NodeTransformer):  # type: ignore[misc]
        """Adds the calls; each loop has a number of its own."""

        num_loops = 0

        def visit_For(self, loop: Any) -> Any:  # noqa: N802 - the name of the node's class
            self.generic_visit(loop)
            if not isinstance(loop.target, nodes.Name):
                return loop
            number = nodes.Const(self.num_loops)
            self.num_loops += 1
            loop.body.insert(0, call(_ENTER, number, nodes.Name(loop.target.name, "load")))
            return [loop, call(_LEAVE, number)]

    return Marker().visit(tree).set_environment(tree.environment)


class MessagePart(NamedTuple):
    """A part of the text, and the index of its message; None for text outside of all messages."""

    message: int | None
    start: int
    stop: int


class PartMarks:
    """The marks of one rendering.

    Args:
        messages: Messages of the conversation, each an object of its own.
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        self._index = {id(message): index for index, message in enumerate(messages)}
        self._open: set[int] = set()

    @property
    def functions(self) -> dict[str, Callable[..., str]]:
        """The functions that the added calls name."""
        return {_ENTER: self._enter, _LEAVE: self._leave}

    def _enter(self, loop: int, item: object) -> str:
        index = self._index.get(id(item))
        if index is None:
            return ""
        kind = _NEXT if loop in self._open else _FIRST
        self._open.add(loop)
        return f"{BEGIN}{kind} {index}{END}"

    def _leave(self, loop: int) -> str:
        if loop not in self._open:
            return ""
        self._open.remove(loop)
        return f"{BEGIN}{_AFTER}{END}"


def read_parts(marked: str) -> tuple[str, list[MessagePart]] | None:
    """Remove the marks; return the text and its parts in order, or None if the template tore the marks."""
    # The message of each loop around the current place.
    owners: list[int | None] = [None]
    parts: list[MessagePart] = []
    pieces = _MARK.split(marked)
    texts = pieces[::2]
    stop = 0
    for text, mark in zip(texts, [*pieces[1::2], _AFTER], strict=True):
        if BEGIN in text or END in text or not owners:
            return None
        start, stop = stop, stop + len(text)
        if text:
            parts.append(MessagePart(owners[-1], start, stop))
        kind, _, index = mark.partition(" ")
        if kind != _FIRST:
            owners.pop()
        if kind != _AFTER:
            owners.append(int(index))
    return None if owners else ("".join(texts), parts)
