"""The first step of opening data: find the files of each source and build missing indexes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydraulis.config.data import CHAT_FORMATS, DataConfig, SourceConfig
from hydraulis.data.index.builder import ensure_index
from hydraulis.data.index.job import IndexJob
from hydraulis.data.sources.source_files import find_source_files
from hydraulis.data.sources.token_files import is_token_file
from hydraulis.errors import InvalidInputError
from hydraulis.progress import ShareCallback, ignore_share


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSource:
    """The prepared files of one source.

    Attributes:
        mapped: Paths of files with tokens, which are mapped without an index.
        index: Folder of the index of all other files; None without any.
        weight: Weight of the source; None without weights.
    """

    mapped: tuple[str, ...]
    index: str | None
    weight: float | None


def prepare_sources(config: DataConfig, progress: ShareCallback = ignore_share) -> list[PreparedSource]:
    """Find the files of every source and build the missing indexes.

    The sources to evaluate on follow those to train on.

    Args:
        config: Section `data`.
        progress: Callback, called with the finished share.

    Raises:
        HydraulisError: Files are refused; see `find_source_files` and `ensure_index`.
    """
    prepared = []
    sources = config.placed_sources
    for number, (_, source) in enumerate(sources):
        records, mapped = find_files(config, number)

        def share(done: float, before: int = number) -> None:
            progress((before + done) / len(sources))

        index = (
            ensure_index(
                make_index_job(config, source, records),
                Path(config.index_directory),
                config.index_processes,
                share,
            )
            if records
            else None
        )
        prepared.append(
            PreparedSource(
                mapped=tuple(map(str, mapped)),
                index=None if index is None else str(index),
                weight=source.weight,
            )
        )
    return prepared


def find_files(config: DataConfig, number: int) -> tuple[list[Path], list[Path]]:
    """Find the files of a source: the files of records, and the files of tokens.

    Args:
        config: Section `data`.
        number: Index of the source in `config.placed_sources`.

    Raises:
        InvalidInputError: A name matches no file (see `find_source_files`), or the files hold tokens and the
            source has another format (code `config_value`).
    """
    place, source = config.placed_sources[number]
    paths = find_source_files(source.files, f"{place}.files")
    records = [path for path in paths if not is_token_file(path)]
    mapped = [path for path in paths if is_token_file(path)]
    if mapped and source.format != "tokens":
        message = (
            f"{place}.format = '{source.format}', and '{mapped[0]}' has tokens: set the format to \"tokens\""
        )
        raise InvalidInputError(message, code="config_value")
    return records, mapped


def make_index_job(config: DataConfig, source: SourceConfig, records: Sequence[Path]) -> IndexJob:
    """Make the index job of a source."""
    is_text = source.format != "tokens"
    return IndexJob(
        paths=tuple(records),
        format=source.format,
        fields=source.fields,
        optional_fields=source.optional_fields,
        # Unused settings must not change the index.
        tokenizer=config.tokenizer if is_text else "",
        chat_template=config.chat_template if source.format in CHAT_FORMATS else "",
        eos_token=config.eos_token if is_text else "",
        broken_records=config.broken_records,
    )
