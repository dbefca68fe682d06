"""Counts and shares in words, as every command, message and report writes them."""


def format_count(number: int, one: str, many: str | None = None) -> str:
    """Write a number and what is counted.

    Args:
        number: of them.
        one: what one of them is called.
        many: what several are called, if that is not `one` with an s.

    >>> format_count(1, "file"), format_count(2_000, "file"), format_count(0, "strategy", "strategies")
    ('1 file', '2,000 files', '0 strategies')
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def format_percent(share: float, decimals: int = 1) -> str:
    """Write a share in percent; sums round, and what rounds to nothing is no negative number.

    >>> format_percent(0.0314), format_percent(-1e-15), format_percent(-4e-5, 2)
    ('3.1 %', '0.0 %', '0.00 %')
    """
    return f"{100 * share:z.{decimals}f} %"
