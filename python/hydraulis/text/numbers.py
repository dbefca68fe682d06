"""Counts and percentages, formatted alike in commands, messages and reports."""


def format_count(number: int, singular: str, plural: str | None = None) -> str:
    """Format a number with the noun that it counts.

    Args:
        number: The number.
        singular: The noun for 1.
        plural: The noun for other numbers; by default `singular` with an s.

    >>> format_count(1, "file"), format_count(2_000, "file"), format_count(0, "strategy", "strategies")
    ('1 file', '2,000 files', '0 strategies')
    """
    return f"{number:,} {singular if number == 1 else plural or f'{singular}s'}"


def format_percent(share: float, decimals: int = 1) -> str:
    """Format a share as a percentage; a negative number that rounds to zero has no minus sign.

    >>> format_percent(0.0314), format_percent(-1e-15), format_percent(-4e-5, 2)
    ('3.1 %', '0.0 %', '0.00 %')
    """
    return f"{100 * share:z.{decimals}f} %"
