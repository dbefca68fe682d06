import math
from collections.abc import Callable

import pytest

from hydraulis.config.check import above, at_least, below, not_empty
from hydraulis.errors import InvalidInputError


def test_the_limits_themselves() -> None:
    at_least("a.b", 1, 1)
    above("a.b", 1.5, 1)
    below("a.b", 0.5, 1)
    not_empty("a.b", "x")
    not_empty("a.b", ("",))
    for check in (above, below):
        with pytest.raises(InvalidInputError, match=r"a\.b = 1 must be"):
            check("a.b", 1, 1)


@pytest.mark.parametrize("check", [at_least, above, below])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_refuses_what_is_not_finite(check: Callable[[str, float, float], None], value: float) -> None:
    with pytest.raises(InvalidInputError, match=f"a.b = {value} must be") as refusal:
        check("a.b", value, 1)
    assert refusal.value.code == "config_value"


@pytest.mark.parametrize("value", ["", "  ", ()])
def test_refuses_what_is_empty(value: str | tuple[str, ...]) -> None:
    with pytest.raises(InvalidInputError, match=r"a.b = .* must be more than nothing"):
        not_empty("a.b", value)
