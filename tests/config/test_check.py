import math
from collections.abc import Callable

import pytest

from hydraulis.config.check import check_above, check_at_least, check_not_empty, check_within
from hydraulis.errors import InvalidInputError


def test_the_limits_themselves() -> None:
    check_at_least("a.b", 1, 1)
    check_above("a.b", 1.5, 1)
    check_within("a.b", 0, 0, 1)
    check_not_empty("a.b", "x")
    check_not_empty("a.b", ("",))
    with pytest.raises(InvalidInputError, match=r"a\.b = 1 must be"):
        check_above("a.b", 1, 1)
    for value in (-0.1, 1, 1.5, math.nan):
        with pytest.raises(
            InvalidInputError, match=rf"a\.b = {value} must be a number of at least 0 and below 1"
        ):
            check_within("a.b", value, 0, 1)


def test_a_whole_number_is_asked_for_where_one_was_given() -> None:
    with pytest.raises(InvalidInputError, match=r"a\.b = -3 must be a whole number of at least 10000000;"):
        check_at_least("a.b", -3, 10_000_000)
    with pytest.raises(InvalidInputError, match=r"a\.b = -3\.0 must be a finite number of at least 1;"):
        check_at_least("a.b", -3.0, 1)


@pytest.mark.parametrize("check", [check_at_least, check_above])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_refuses_what_is_not_finite(check: Callable[[str, float, float], None], value: float) -> None:
    with pytest.raises(InvalidInputError, match=f"a.b = {value} must be") as refusal:
        check("a.b", value, 1)
    assert refusal.value.code == "config_value"


@pytest.mark.parametrize("value", ["", "  ", ()])
def test_refuses_what_is_empty(value: str | tuple[str, ...]) -> None:
    with pytest.raises(InvalidInputError, match=r"a.b = .* must be more than nothing"):
        check_not_empty("a.b", value)
