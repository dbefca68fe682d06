"""Numbers of things in words, as every command writes them."""


def counted(number: int, one: str, many: str | None = None) -> str:
    """Write a number and what is counted.

    Args:
        number: of them.
        one: what one of them is called.
        many: what several are called, if that is not `one` with an s.

    >>> counted(1, "file"), counted(2_000, "file"), counted(0, "strategy", "strategies")
    ('1 file', '2,000 files', '0 strategies')
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
