import math
from collections.abc import Callable

import pytest

from helpers import refused
from hydraulis.config.check import check_above, check_at_least, check_not_empty, check_within


def test_values_at_the_limits_are_accepted_or_refused() -> None:
    check_at_least("a.b", 1, 1)
    check_above("a.b", 1.5, 1)
    check_within("a.b", 0, 0, 1)
    check_not_empty("a.b", "x")
    check_not_empty("a.b", ("",))
    with refused("config_value", "a.b = 1 "):
        check_above("a.b", 1, 1)
    for value in (-0.1, 1, 1.5, math.nan):
        with refused("config_value", f"a.b = {value} ", "at least 0", "below 1"):
            check_within("a.b", value, 0, 1)


def test_an_integer_key_requires_a_whole_number() -> None:
    with refused("config_value", "a.b = -3 ", "whole number", "10000000"):
        check_at_least("a.b", -3, 10_000_000)
    with refused("config_value", "a.b = -3.0 ", "finite number", "at least 1;"):
        check_at_least("a.b", -3.0, 1)


@pytest.mark.parametrize("check", [check_at_least, check_above])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_infinities_and_nan_are_refused(check: Callable[[str, float, float], None], value: float) -> None:
    with refused("config_value", f"a.b = {value} "):
        check("a.b", value, 1)


@pytest.mark.parametrize("value", ["", "  ", ()])
def test_empty_values_are_refused(value: str | tuple[str, ...]) -> None:
    with refused("config_value", "a.b = ", "such as 'x'"):
        check_not_empty("a.b", value, "'x'")
