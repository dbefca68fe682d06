"""Tables and sentences about a data set: its lengths, its batches, and its records left out."""

from collections.abc import Mapping, Sequence

import numpy as np

from hydraulis.cli.terminal.fitted import fitted
from hydraulis.data.analysis import BatchImbalance, LengthStatistics
from hydraulis.extras import import_extra
from hydraulis.text.values import format_count

_BAR_WIDTH = 24
# Columns of a file's lines, where there is no terminal width.
_FILE_WIDTH = 120
_EIGHTHS = " ▏▎▍▌▋▊▉"
# Keys of `Dataset.count_documents`: the counted unit, and its fate.
_LEFT_OUT = {
    "held_out": ("document", "held out"),
    "too_long": ("document", "too long"),
    "lost_tokens": ("token", "lost"),
    "without_target": ("sequence", "without a target"),
    "documents_without_target": ("document", "without a target"),
    "broken_records": ("record", "broken"),
    "documents_without_token": ("document", "without a token"),
}


def left_out_counts(facts: Mapping[str, int]) -> list[str]:
    """Describe documents, tokens and records that are not trained as they are in the files.

    Args:
        facts: Counts with the keys of `Dataset.count_documents`; counts of 0 are left out.
    """
    return [
        f"{format_count(facts[key], unit)} {fate}"
        for key, (unit, fate) in _LEFT_OUT.items()
        if facts.get(key)
    ]


def require_tables() -> None:
    """Raise `HydraulisError` (code `extra_missing`) if rich is not installed."""
    import_extra("rich", "hydraulis analyze without --json")


def print_analysis(
    lengths: LengthStatistics, batches: BatchImbalance | None, why_replicas: str, sentence: str | None
) -> None:
    """Print tables of the lengths and batches.

    Args:
        lengths: Statistics of the lengths.
        batches: Imbalance of the batches; None without batches.
        why_replicas: Reason for the number of replicas of `batches`.
        sentence: Sentence about a comparison; None without one.
    """
    # Imported here: the command starts without rich.
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _FILE_WIDTH
    quantiles = ", ".join(
        f"{100 * share:g} % up to {length:,}" for share, length in lengths.quantiles.items()
    )

    def show(text: str) -> None:
        console.print(fitted(text, console.width if console.is_terminal else None, indent=0), soft_wrap=True)

    show(
        f"{format_count(lengths.sequences, 'sequence')}, {format_count(lengths.tokens, 'token')}, "
        f"{lengths.targets:,} of them targets\n"
        f"mean {lengths.mean:,.1f}; {quantiles}; longest {lengths.longest:,}\n"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("tokens", justify="right")
    for heading in ("sequences", "of all", "tokens", "attention"):
        table.add_column(heading, justify="right")
    table.add_column("share of all tokens")
    squares = sum(one.squares for one in lengths.bins)
    most = max(one.tokens for one in lengths.bins)
    for one in lengths.bins:
        table.add_row(
            one.range,
            f"{one.sequences:,}",
            f"{one.sequences / lengths.sequences:.1%}",
            f"{one.tokens / lengths.tokens:.1%}",
            f"{one.squares / squares:.1%}",
            _bar(one.tokens / most),
        )
    console.print(table)
    if batches is not None:
        show(_describe_batches(batches, why_replicas))
    if sentence is not None:
        show(f"\n{sentence}")


def _describe_batches(batches: BatchImbalance, why_replicas: str) -> str:
    return (
        f"\n{format_count(batches.batches, 'batch', 'batches')} of {batches.sequences:,.0f} sequences and "
        f"{batches.tokens:,.0f} tokens in the mean; the longest sequence of a batch has "
        f"{_spread(batches.longest, ',.0f')} tokens.\n"
        f"Assigned in turn to {format_count(batches.replicas, 'equal replica')} ({why_replicas}), the "
        f"fullest one has {_spread(batches.token_imbalance, '.2f')} times the mean tokens and "
        f"{_spread(batches.square_imbalance, '.2f')} times the mean attention."
    )


def _spread(values: Sequence[float], form: str) -> str:
    median, high = np.percentile(values, (50, 95))
    return f"{median:{form}} (median; 95 %: {high:{form}})"


def _bar(share: float) -> str:
    eighths = round(share * _BAR_WIDTH * 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()
