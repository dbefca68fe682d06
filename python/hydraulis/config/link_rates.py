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
    except InvalidInputError:
        message = (
            f"{field} = {text!r} must be 'profile', 'none', or rates of links NODE[,GPU[,MESSAGE]] in GB/s, "
            "GB/s and microseconds: the limits are 1e-9 and 1e9, of a message 0 and 1e9; write it as in "
            "25,200,10"
        )
        raise InvalidInputError(message, code="config_value") from None
