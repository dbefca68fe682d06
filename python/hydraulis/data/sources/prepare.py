"""Files of a source, and the index that is built of them before they are opened."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydraulis.config.data import DataConfig, SourceConfig
from hydraulis.data.index.builder import ensure_index
from hydraulis.data.index.job import IndexJob
from hydraulis.data.sources.source_files import find_source_files
from hydraulis.data.sources.token_files import is_token_file
from hydraulis.errors import InvalidInputError

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSource:
    """Where the documents of one source are.

    Attributes:
        mapped: files with tokens, which are read as they are.
        index: the folder of the index of all other files; None if there are none.
        weight: of the source.
    """

    mapped: tuple[str, ...]
    index: str | None
    weight: float | None


def prepare_sources(config: DataConfig, progress: Progress = lambda _: None) -> list[PreparedSource]:
    """Find the files of every source, and build the indexes that are missing.

    Args:
        config: the section `data`.
        progress: called with the share that is done, from 0 to 1.

    Raises:
        HydraulisError: see `find_source_files` and `ensure_index`.
    """
    prepared = []
    for number, source in enumerate(config.sources):
        records, mapped = find_files(config, number)

        def share(done: float, before: int = number) -> None:
            progress((before + done) / len(config.sources))

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
    """Find the files of a source: those that hold records, and those that hold tokens, which are mapped.

    Raises:
        InvalidInputError: A name matches no file (see `find_source_files`), or the files hold tokens and the
            source has another format (code `config_value`).
    """
    source = config.sources[number]
    paths = find_source_files(source.files)
    records = [path for path in paths if not is_token_file(path)]
    mapped = [path for path in paths if is_token_file(path)]
    if mapped and source.format != "tokens":
        message = (
            f"data.sources[{number}].format = '{source.format}', and '{mapped[0]}' holds tokens: set the "
            'format to "tokens"'
        )
        raise InvalidInputError(message, code="config_value")
    return records, mapped


def make_index_job(config: DataConfig, source: SourceConfig, records: Sequence[Path]) -> IndexJob:
    """Say what the index of a source is made of."""
    is_text = source.format != "tokens"
    return IndexJob(
        paths=tuple(records),
        format=source.format,
        fields=source.fields,
        # What is not used does not decide which index it is.
        tokenizer=config.tokenizer if is_text else "",
        chat_template=config.chat_template if source.format == "chat" else "",
        eos_token=config.eos_token if is_text else "",
        broken=config.broken,
    )
