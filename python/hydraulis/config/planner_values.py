"""Texts in the section `planner`: strategies in a list, and rates of links."""

import re
from collections.abc import Iterable

from hydraulis._core import LinkRates
from hydraulis.errors import InvalidInputError
from hydraulis.text.nearest import meant

SEARCH_NAME = "search"


def check_strategy_names(names: Iterable[str]) -> None:
    """Refuse what was meant to be several strategies, or the search.

    Raises:
        InvalidInputError: one is either (code `strategy_syntax`).
    """
    for name in names:
        # Inside of a scheme's brackets a comma separates its degrees.
        if "," in re.sub(r"<[^>]*>", "", name):
            message = f"{name!r} holds a comma between strategies: separate them by ';'"
            raise InvalidInputError(message, code="strategy_syntax")
        near = meant(name, [SEARCH_NAME])
        if near and name != SEARCH_NAME:
            message = f"{name!r} is no strategy, such as 2x<tp4>{near}"
            raise InvalidInputError(message, code="strategy_syntax")


def parse_link_rates(field: str, text: str) -> LinkRates:
    """Read `NODE[,GPU[,MESSAGE]]`; the core knows what is left out, and the limits.

    Args:
        field: that the text is the value of, for messages.
        text: GB/s of a node, GB/s of a GPU inside it, and microseconds of a message.

    Raises:
        InvalidInputError: it is not written so, or a number is beyond its limits (code `config_value`).
    """
    try:
        return LinkRates.parse(text)
    except InvalidInputError:
        message = (
            f"{field} = {text!r} must be 'profile', 'none', or rates of links NODE[,GPU[,MESSAGE]] in GB/s, "
            "GB/s and microseconds: the limits are 1e-9 and 1e9, of a message 0 and 1e9; write it as in "
            "25,200,10"
        )
        raise InvalidInputError(message, code="config_value") from None
