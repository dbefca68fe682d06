"""Tables in Markdown, printed row by row."""

import sys
from collections.abc import Sequence

Row = tuple[str, ...]


def print_row(row: Sequence[str]) -> None:
    """Print one row of a table."""
    sys.stdout.write(f"| {' | '.join(row)} |\n")
    sys.stdout.flush()


def print_head(names: Sequence[str]) -> None:
    """Print the names of the columns."""
    print_row(names)
    print_row(["---"] * len(names))
