"""How far the data of a run are prepared, told without preparing them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hydraulis.config.data import DataConfig
from hydraulis.data.index.builder import check_extent, index_folder, no_record
from hydraulis.data.index.files import complete_extent, partial_extent
from hydraulis.data.index.job import IndexJob
from hydraulis.data.sources.prepare import PreparedSource, find_files, make_index_job

# Of many files it is the kind of the records that is asked for, not each one.
_MOST_FILES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """What there is of one source.

    Attributes:
        files: it has.
        prepared: where its documents are, if they can be read at once; None if an index is missing.
        documents: that are indexed so far.
    """

    files: int
    prepared: PreparedSource | None
    documents: int


def inspect_sources(config: DataConfig) -> list[SourceState]:
    """Look at the sources of a configuration; of those without an index the first records are read.

    Raises:
        HydraulisError: files, records, tokenizer or template are refused (see `prepare`).
    """
    return [_state(config, number) for number in range(len(config.sources))]


def _state(config: DataConfig, number: int) -> SourceState:
    source = config.sources[number]
    records, mapped = find_files(config, number)
    files = len(records) + len(mapped)
    if not records:
        prepared = PreparedSource(mapped=tuple(map(str, mapped)), index=None, weight=source.weight)
        return SourceState(files=files, prepared=prepared, documents=0)
    job = make_index_job(config, source, records)
    folder = index_folder(job, Path(config.index_directory))
    extent = complete_extent(folder)
    if extent is not None:
        check_extent(job, extent)
        prepared = PreparedSource(mapped=tuple(map(str, mapped)), index=str(folder), weight=source.weight)
        return SourceState(files=files, prepared=prepared, documents=extent.documents)
    begun = partial_extent(folder)
    _read_first(job, records)
    return SourceState(files=files, prepared=None, documents=0 if begun is None else begun.documents)


def _read_first(job: IndexJob, paths: Sequence[Path]) -> None:
    """Tokenise the first record of each file, or of some that stand for all.

    Raises:
        InvalidInputError: a record is refused, or no file has any (code `corpus_empty`).
    """
    encoder = job.encoder()
    chosen = np.unique(np.linspace(0, len(paths) - 1, min(len(paths), _MOST_FILES)).astype(int)).tolist()
    found = [job.encode_first(number, encoder) for number in chosen]
    others = (number for number in range(len(paths)) if number not in chosen)
    if not any(found) and not any(job.encode_first(number, encoder) for number in others):
        raise no_record(job)
