"""The texts of the section `planner`: link rates and strategies."""

import pytest

from helpers import refused
from hydraulis import LinkRates
from hydraulis.config.planner import EVERY_DEVICE, PlannerConfig, check_strategy_names, parse_link_rates


def test_absent_rates_have_the_defaults_of_plan_bench() -> None:
    assert parse_link_rates("planner.link", "25")[EVERY_DEVICE] == LinkRates(
        gigabytes_per_s=25.0, gpu_gigabytes_per_s=200.0, message_us=10.0
    )
    assert parse_link_rates("planner.link", "25, 40")[EVERY_DEVICE] == LinkRates(
        gigabytes_per_s=25.0, gpu_gigabytes_per_s=40.0
    )
    assert parse_link_rates("planner.link", "25,40,0")[EVERY_DEVICE] == LinkRates(
        gigabytes_per_s=25.0, gpu_gigabytes_per_s=40.0, message_us=0.0
    )


def test_rates_are_stated_for_each_device() -> None:
    assert parse_link_rates("planner.link", "A100=25; H100 SXM=50,450") == {
        "A100": LinkRates(gigabytes_per_s=25),
        "H100 SXM": LinkRates(gigabytes_per_s=50, gpu_gigabytes_per_s=450),
    }


@pytest.mark.parametrize("text", ["=25", "A=25;", "A=25;50", "A=25;A=50", "25;50", "A=", "A=25;B=x"])
def test_rates_of_some_nodes_alone_are_refused(text: str) -> None:
    with refused("config_value", f"planner.link = {text!r}", "once for each device"):
        parse_link_rates("planner.link", text)


@pytest.mark.parametrize(
    "text", ["", "fast", "0", "1,0", "1,2,-3", "1,2,3,4", "nan", "inf", "1,,2", "1e-12", "1e10", "1,1,1e10"]
)
def test_an_invalid_rate_is_refused(text: str) -> None:
    with refused("config_value", f"planner.link = {text!r}", "'profile'", "'none'"):
        parse_link_rates("planner.link", text)


@pytest.mark.parametrize(("text", "limits"), [("1e-12", "1e-9 and 1e9"), ("1,1,1e10", "0 and 1e9")])
def test_the_message_has_the_limits_of_the_core_once(text: str, limits: str) -> None:
    low, high = limits.split(" and ")
    with refused("argument_invalid", low, high):
        LinkRates.parse(text)
    with refused("config_value", low, high) as caught:
        parse_link_rates("--link", text)
    message = str(caught.value)
    assert (message.count("limits"), message.count("; "), message.count(text)) == (1, 1, 1)


@pytest.mark.parametrize(
    ("name", "remedy"), [("2x<1>,1x<tp2>", "';'"), ("serach", "'search'"), ("Search", "'search'")]
)
def test_several_strategies_in_one_name_and_a_misspelt_search_are_refused(name: str, remedy: str) -> None:
    with refused("strategy_invalid", repr(name), remedy):
        check_strategy_names(["1x<tp4>", name])


@pytest.mark.parametrize("name", ["search", "1x<tp2,pp2>+1x<tp2,full>", "nonsense"])
def test_other_names_are_left_to_the_core(name: str) -> None:
    check_strategy_names([name])


def test_the_most_layer_plans_and_splits_are_accepted() -> None:
    config = PlannerConfig(strategies=("search",), layer_plans=32, layer_splits=32)
    assert (config.layer_plans, config.layer_splits) == (32, 32)
