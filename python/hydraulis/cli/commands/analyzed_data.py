"""What `hydraulis analyze` looks at: the sequences that its options, a file of lengths or a run name."""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Self

import numpy as np
import numpy.typing as npt

from hydraulis.cli.commands.batches import DrawnBatches, drawn, first_batches
from hydraulis.cli.options import BATCH_OPTION, overrides_of
from hydraulis.cli.terminal.progress import Progress
from hydraulis.config.data import DataConfig
from hydraulis.config.layered.table import from_table
from hydraulis.config.run import load_data_section
from hydraulis.data.open import open_sources
from hydraulis.data.sampling.run_sampler import make_sampler
from hydraulis.data.sources.prepare import PreparedSource, prepare_sources
from hydraulis.errors import InvalidInputError
from hydraulis.planner import read_lengths

# Whole documents, unless a limit is asked for.
_NO_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class AnalyzedData:
    """All sequences of what is analysed.

    Attributes:
        lengths: in tokens.
        targets: target counts of the same sequences.
        account: counts of documents and of what is not trained as it stands in the files; empty of lengths.
        draw: draws the batches that are asked for; None if none are.
    """

    lengths: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    account: Mapping[str, int]
    draw: Callable[[], DrawnBatches] | None

    @classmethod
    def of(cls, arguments: argparse.Namespace, progress: Progress) -> Self:
        """Read them.

        Raises:
            InvalidInputError: a configuration names no data (code `option_invalid`), or what reading
                raises.
        """
        if arguments.lengths is not None:
            lengths = read_lengths(
                arguments.lengths, arguments.field[0] if arguments.field else None, progress
            )
            draw = partial(drawn, arguments, lengths, progress) if draws_batches(arguments) else None
            return cls(lengths, lengths - 1, {}, draw)
        config = _of_run(arguments) if is_run(arguments) else _of_options(arguments)
        train = open_sources(config, _prepared(config, progress)).train
        broken = train.broken_note()
        if broken:
            with progress.aside():
                sys.stderr.write(f"{broken}\n")
        if not draws_batches(arguments):
            return cls(train.lengths, train.target_counts, train.account(), None)
        sampler = make_sampler(config, train, arguments.seed)
        key = BATCH_OPTION if arguments.tokens_per_batch is not None else f"data.{config.budget_key}"
        draw = partial(first_batches, key, sampler, train.lengths, arguments.count, progress)
        return cls(train.lengths, train.target_counts, train.account(), draw)


def is_run(arguments: argparse.Namespace) -> bool:
    """Tell whether DATA is the configuration of a run."""
    return len(arguments.data) == 1 and arguments.data[0].endswith(".toml")


def draws_batches(arguments: argparse.Namespace) -> bool:
    """Tell whether batches are drawn: the options say how large they are, or a run does."""
    return is_run(arguments) or arguments.tokens_per_batch is not None


def _prepared(config: DataConfig, progress: Progress) -> list[PreparedSource]:
    """Index what is not indexed yet; an interrupt says what becomes of what was done."""
    progress("opening the data")
    try:
        prepared = prepare_sources(config, progress.share("indexing"))
    except KeyboardInterrupt:
        with progress.aside():
            kept = f"what is indexed is kept in {config.index_directory}; the same command goes on from it\n"
            sys.stderr.write(kept)
        raise
    progress("opening the data")
    return prepared


def _of_run(arguments: argparse.Namespace) -> DataConfig:
    config = load_data_section(arguments.data[0], overrides_of(arguments), arguments.preset)
    if not config.sources:
        message = (
            f"'{arguments.data[0]}' has no data.sources, so there is nothing to read; name files instead"
        )
        raise InvalidInputError(message, code="option_invalid")
    if arguments.tokens_per_batch is None:
        return config
    return dataclasses.replace(config, tokens_per_batch=arguments.tokens_per_batch, sequences_per_batch=None)


def _of_options(arguments: argparse.Namespace) -> DataConfig:
    table = {
        "sources": [
            {"files": arguments.data, "format": arguments.format or "text", "fields": arguments.field}
        ],
        "tokenizer": arguments.tokenizer or "bytes",
        "chat_template": arguments.chat_template or "",
        "broken": arguments.broken or "refuse",
        "max_tokens": arguments.max_tokens or _NO_LIMIT,
        "tokens_per_batch": arguments.tokens_per_batch or 1,
    }
    return from_table(DataConfig, table, "data")
