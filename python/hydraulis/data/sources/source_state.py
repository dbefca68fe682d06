"""The state of a run's data, without any preparation."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hydraulis.config.data import DataConfig
from hydraulis.data.index.builder import check_extent, index_folder, no_record
from hydraulis.data.index.files import complete_extent, partial_extent
from hydraulis.data.index.job import IndexJob
from hydraulis.data.sources.prepare import PreparedSource, find_files, make_index_job

# Number of files whose first record is checked.
_MAX_FILES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """The state of one source.

    Attributes:
        files: Number of its files.
        prepared: Prepared files; None if the index is missing or incomplete.
        documents: Number of documents indexed so far.
    """

    files: int
    prepared: PreparedSource | None
    documents: int


def inspect_sources(config: DataConfig) -> list[SourceState]:
    """Inspect the sources of a configuration, and check the first records of sources without an index.

    Raises:
        HydraulisError: Files, records, the tokenizer or the template are refused (see `prepare_sources`).
    """
    return [_state(config, number) for number in range(len(config.placed_sources))]


def _state(config: DataConfig, number: int) -> SourceState:
    _, source = config.placed_sources[number]
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
    partial = partial_extent(folder)
    _read_first(job, records)
    return SourceState(files=files, prepared=None, documents=0 if partial is None else partial.documents)


def _read_first(job: IndexJob, paths: Sequence[Path]) -> None:
    """Tokenize the first record of each file, or of a sample of 16 files.

    Raises:
        InvalidInputError: A record is refused, or no file has any (code `corpus_empty`).
    """
    encoder = job.encoder()
    chosen = np.unique(np.linspace(0, len(paths) - 1, min(len(paths), _MAX_FILES)).astype(int)).tolist()
    found = [job.encode_first(number, encoder) for number in chosen]
    others = (number for number in range(len(paths)) if number not in chosen)
    if not any(found) and not any(job.encode_first(number, encoder) for number in others):
        raise no_record(job)
