"""Rates of links as one line of text."""

import pytest

from hydraulis import LinkRates
from hydraulis.config.planner import check_strategy_names, parse_link_rates
from hydraulis.errors import InvalidInputError


def test_what_is_left_out_is_as_in_plan_bench() -> None:
    assert parse_link_rates("planner.link", "25") == LinkRates(
        gigabytes_per_s=25.0, gpu_gigabytes_per_s=200.0, message_us=10.0
    )
    assert parse_link_rates("planner.link", "25, 40") == LinkRates(
        gigabytes_per_s=25.0, gpu_gigabytes_per_s=40.0
    )
    assert parse_link_rates("planner.link", "25,40,0") == LinkRates(
        gigabytes_per_s=25.0, gpu_gigabytes_per_s=40.0, message_us=0.0
    )


@pytest.mark.parametrize(
    "text", ["", "fast", "0", "1,0", "1,2,-3", "1,2,3,4", "nan", "inf", "1,,2", "1e-12", "1e10", "1,1,1e10"]
)
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(
        InvalidInputError, match=r"planner\.link = .* must be 'profile', 'none', or"
    ) as caught:
        parse_link_rates("planner.link", text)
    assert caught.value.code == "config_value"


def test_what_is_refused_says_the_limit() -> None:
    with pytest.raises(InvalidInputError, match=r"the limits are 1e-9 and 1e9"):
        parse_link_rates("planner.link", "1e-12")


@pytest.mark.parametrize(("text", "limits"), [("1e-12", "1e-9 and 1e9"), ("1,1,1e10", "0 and 1e9")])
def test_the_limits_are_those_of_the_core_and_said_once(text: str, limits: str) -> None:
    with pytest.raises(InvalidInputError, match=limits):
        LinkRates.parse(text)
    with pytest.raises(InvalidInputError, match=limits) as caught:
        parse_link_rates("--link", text)
    message = str(caught.value)
    assert (message.count("limits"), message.count(";"), message.count(text)) == (1, 1, 1)


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
    assert (refusal.value.code, str(refusal.value)) == ("strategy_invalid", says)


@pytest.mark.parametrize("name", ["search", "1x<tp2,pp2>+1x<tp2,full>", "nonsense"])
def test_others_are_for_those_who_read_them(name: str) -> None:
    check_strategy_names([name])
