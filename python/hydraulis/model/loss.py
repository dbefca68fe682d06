"""What counts in the loss, and by what it is divided."""

from hydraulis.errors import InvalidInputError

IGNORE_INDEX = -100
"""The target of a token that does not count: padding, prompts, the last token of a sequence."""


def check_denominator(denominator: int) -> None:
    """Raise `InvalidInputError` (code `batch_empty`) unless the denominator is at least 1."""
    if denominator < 1:
        message = (
            f"denominator = {denominator} must be at least 1; "
            "it is the number of target tokens of the global batch, and a batch without any has no loss"
        )
        raise InvalidInputError(message, code="batch_empty")
