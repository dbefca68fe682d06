"""Shares in percent, as every command and report writes them."""


def percent(share: float, decimals: int = 1) -> str:
    """Write a share in percent; sums round, and what rounds to nothing is no negative number.

    >>> percent(0.0314), percent(-1e-15), percent(-4e-5, 2)
    ('3.1 %', '0.0 %', '0.00 %')
    """
    return f"{100 * share:z.{decimals}f} %"
