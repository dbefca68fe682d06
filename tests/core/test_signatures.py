"""What `help` shows of the native part: every argument, and what it is when it is left out."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import hydraulis
from helpers import at_least
from hydraulis import LayerSplit, LinkRates


def callables() -> Iterator[tuple[str, Callable[..., Any], bool]]:
    """Give what can be called of the package by name, and whether it is a method."""
    for name in hydraulis.__all__:
        exported = getattr(hydraulis, name)
        if inspect.isclass(exported):
            if not issubclass(exported, Exception) and _can_be_made(exported):
                yield name, exported, False
            for member in vars(exported):
                method = getattr(exported, member)
                if not member.startswith("_") and callable(method):
                    yield f"{name}.{member}", method, True
        else:
            yield name, exported, False


def _can_be_made(kind: type) -> bool:
    try:
        inspect.signature(kind)
    except ValueError:
        return False
    return True


CALLABLES = {name: (called, is_method) for name, called, is_method in callables()}


def arguments(called: Callable[..., Any]) -> list[inspect.Parameter]:
    found = inspect.signature(called).parameters.values()
    return [one for one in found if one.name not in ("self", "args", "kwargs")]


@pytest.mark.parametrize("name", at_least(45, CALLABLES))
def test_no_default_is_hidden(name: str) -> None:
    hidden = [one.name for one in arguments(CALLABLES[name][0]) if one.default is Ellipsis]
    assert hidden == []


@pytest.mark.parametrize("name", CALLABLES)
def test_arguments_are_described(name: str) -> None:
    """Of a method with one argument the sentence says what it is."""
    called, is_method = CALLABLES[name]
    names = {one.name for one in arguments(called)}
    if len(names) > is_method:
        _, _, section = (inspect.getdoc(called) or "").partition("\nArgs:\n")
        described = [line.strip().partition(":")[0] for line in section.splitlines() if line[:4].isspace()]
        assert names - {one for line in described for one in line.split(", ")} == set()


def test_documented_defaults_equal_the_used_ones() -> None:
    shown = {one.name: one.default for one in arguments(LinkRates)}
    taken = LinkRates(gigabytes_per_s=25)
    assert shown["gpu_gigabytes_per_s"] == taken.gpu_gigabytes_per_s
    assert shown["message_us"] == taken.message_us
    of_link = {one.name: one.default for one in arguments(hydraulis.Link)}
    assert {**of_link, **shown} == of_link
    (stated,) = [one.default for one in arguments(LayerSplit) if one.name == "stated"]
    assert list(stated) == LayerSplit(4).stated
