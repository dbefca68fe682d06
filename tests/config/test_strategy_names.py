"""What is refused of a list of strategies before anybody takes them apart."""

import pytest

from hydraulis.config.planner_values import check_strategy_names
from hydraulis.errors import InvalidInputError


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("2x<1>,1x<tp2>", "'2x<1>,1x<tp2>' holds a comma between strategies: separate them by ';'"),
        ("serach", "'serach' is no strategy, such as 2x<tp4>; did you mean 'search'?"),
        ("Search", "'Search' is no strategy, such as 2x<tp4>; did you mean 'search'?"),
    ],
)
def test_what_was_meant_is_said(name: str, says: str) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        check_strategy_names(["1x<tp4>", name])
    assert (refusal.value.code, str(refusal.value)) == ("strategy_syntax", says)


@pytest.mark.parametrize("name", ["search", "1x<tp2,pp2>+1x<tp2,full>", "nonsense"])
def test_others_are_for_those_who_read_them(name: str) -> None:
    check_strategy_names([name])
