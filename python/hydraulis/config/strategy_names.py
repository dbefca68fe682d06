"""Strategies as a person writes them in a list, before anybody takes them apart."""

import re
from collections.abc import Iterable

from hydraulis.config.nearest import meant
from hydraulis.errors import InvalidInputError

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
