"""How fast the links of a cluster are, in one line of text."""

from hydraulis._core import LinkRates
from hydraulis.errors import InvalidInputError


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
    except InvalidInputError as error:
        message = f"{field} = {text!r} must be 'profile', 'none', or rates of links: {error}"
        raise InvalidInputError(message, code="config_value") from None
