"""The sequences that `hydraulis analyze` reads: from data files, a file of lengths, or a run's data."""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Self

import numpy as np
import numpy.typing as npt

from hydraulis.cli.analysis.sampled_batches import SampledBatches, first_batches, sample_batches
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

# Default of --max-tokens: documents stay whole.
_NO_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class AnalyzedData:
    """All sequences of the analysed data.

    Attributes:
        lengths: Tokens of each sequence, int64 [sequences].
        targets: Target tokens of each sequence, int64 [sequences].
        account: Counts of documents and of those left out or changed, from `Dataset.count_documents`;
            empty for a file of lengths.
        sample: Function that samples the batches of the options; None without batches.
    """

    lengths: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    account: Mapping[str, int]
    sample: Callable[[], SampledBatches] | None

    @classmethod
    def of(cls, arguments: argparse.Namespace, progress: Progress) -> Self:
        """Read the data.

        Raises:
            HydraulisError: A configuration names no data (code `option_invalid`), or the data are refused.
        """
        if arguments.lengths is not None:
            lengths = read_lengths(
                arguments.lengths, arguments.field[0] if arguments.field else None, progress
            )
            sample = partial(sample_batches, arguments, lengths, progress) if has_batches(arguments) else None
            return cls(lengths, lengths - 1, {}, sample)
        config = _of_run(arguments) if is_run(arguments) else _of_options(arguments)
        data = open_sources(config, _prepared(config, progress))
        train = data.train
        for left_out in data.describe_left_out():
            with progress.aside():
                sys.stderr.write(f"{left_out}\n")
        if not has_batches(arguments):
            return cls(train.lengths, train.target_counts, train.count_documents(), None)
        sampler = make_sampler(config, train, arguments.seed)
        key = BATCH_OPTION if arguments.tokens_per_batch is not None else f"data.{config.budget_key}"
        sample = partial(first_batches, key, sampler, train.lengths, arguments.count, progress)
        return cls(train.lengths, train.target_counts, train.count_documents(), sample)


def is_run(arguments: argparse.Namespace) -> bool:
    """Whether DATA is the configuration of a run."""
    return len(arguments.data) == 1 and arguments.data[0].endswith(".toml")


def has_batches(arguments: argparse.Namespace) -> bool:
    """Whether the options or a run's configuration set the size of batches."""
    return is_run(arguments) or arguments.tokens_per_batch is not None


def _prepared(config: DataConfig, progress: Progress) -> list[PreparedSource]:
    """Index the data as far as they are not; after an interrupt, print that the index is kept."""
    progress("opening the data")
    try:
        prepared = prepare_sources(config, progress.share("indexing"))
    except KeyboardInterrupt:
        with progress.aside():
            where = config.index_directory
            sys.stderr.write(f"the index so far is kept in {where}; the same command continues it\n")
        raise
    progress("opening the data")
    return prepared


def _of_run(arguments: argparse.Namespace) -> DataConfig:
    config = load_data_section(arguments.data[0], overrides_of(arguments), arguments.preset)
    if not config.sources:
        message = f"'{arguments.data[0]}' has no data.sources; name files as DATA instead"
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
        "broken_records": arguments.broken_records or "refuse",
        "max_tokens": arguments.max_tokens or _NO_LIMIT,
        "tokens_per_batch": arguments.tokens_per_batch or 1,
    }
    return from_table(DataConfig, table, "data")
