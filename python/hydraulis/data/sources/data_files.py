"""The files of a run's data: those that come twice, and their comparison with an earlier list by size."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from hydraulis.config.data import DataConfig
from hydraulis.data.index.job import file_stamp
from hydraulis.data.sources.prepare import find_files
from hydraulis.data.sources.token_files import MEGATRON_SUFFIXES
from hydraulis.text.values import escape_unprintable, format_count


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file of the data.

    Attributes:
        path: Path of the file; characters that are no UTF-8 are escaped.
        bytes: Size in bytes.
        changed_us: Time of the last change of a mapped file, in microseconds since 1970; None for records,
            whose index has a digest of all tokens.
    """

    path: str
    bytes: int
    changed_us: int | None = None


def list_data_files(config: DataConfig) -> list[DataFile]:
    """List the files of all sources, in order.

    Raises:
        InvalidInputError: A name matches nothing (see `source_files`), or a file cannot be read (code
            `data_file_invalid`).
    """
    found: list[DataFile] = []
    for number in range(len(config.sources)):
        records, mapped = find_files(config, number)
        found += [DataFile(path=_name(path), bytes=file_stamp(path)[1]) for path in records]
        found += map(_mapped_file, mapped)
    return found


def _mapped_file(path: Path) -> DataFile:
    stamps = [file_stamp(path)]
    if path.suffix in MEGATRON_SUFFIXES:
        stamps.append(file_stamp(path.with_suffix(".bin")))
    changed = max(changed for _, _, changed in stamps) // 1000
    return DataFile(path=_name(path), bytes=stamps[0][1], changed_us=changed)


def _name(path: Path) -> str:
    return escape_unprintable(str(path))


def describe_changed_times(before: Sequence[DataFile], now: Sequence[DataFile]) -> str:
    """Describe mapped files with another time of change; return an empty string without any.

    Args:
        before: Earlier list of files.
        now: Present list, with the sizes of the earlier one in order.
    """
    both = zip(before, now, strict=False)
    changed = [
        new for old, new in both if None not in (times := {old.changed_us, new.changed_us}) and len(times) > 1
    ]
    if not changed:
        return ""
    more = f" and {format_count(len(changed) - 1, 'other file')}" if len(changed) > 1 else ""
    return (
        f"file '{changed[0].path}'{more}: the time of change differs from the earlier steps', and only "
        "samples of mapped files are compared; make sure that the tokens are the same"
    )


def describe_repeated_files(config: DataConfig) -> list[str]:
    """Describe the files that two sources read, and those that training and validation read.

    Raises:
        InvalidInputError: A name matches nothing (see `source_files`).
    """
    places: dict[Path, list[str]] = {}
    for number, (place, _) in enumerate(config.placed_sources):
        for path in chain(*find_files(config, number)):
            places.setdefault(path.resolve(), []).append(place)
    found: dict[str, list[Path]] = {}
    for path, names in places.items():
        if len(names) > 1:
            found.setdefault(" and ".join(names), []).append(path)
    return [_describe_repeated(names, paths) for names, paths in found.items()]


def _describe_repeated(places: str, paths: Sequence[Path]) -> str:
    more = f" and {format_count(len(paths) - 1, 'other file')}" if len(paths) > 1 else ""
    verb = "are" if more else "is"
    is_validated = "data.sources" in places and "data.validation" in places
    effect = "evaluation reads documents of training" if is_validated else "their documents count twice"
    return f"file '{paths[0]}'{more} {verb} in {places}, so {effect}"


def describe_difference(before: Sequence[DataFile], now: Sequence[DataFile]) -> str | None:
    """Describe the first difference between two lists of files; None if their sizes are equal in order.

    Paths may differ, because files may be moved or renamed.
    """
    if [file.bytes for file in before] == [file.bytes for file in now]:
        return None
    sizes = {file.path: file.bytes for file in before}
    for file in now:
        size = sizes.get(file.path, file.bytes)
        if size != file.bytes:
            return f"file '{file.path}' has {file.bytes:,} bytes and had {size:,}"
    paths = {file.path for file in now}
    for path in sizes:
        if path not in paths:
            return f"file '{path}' has been removed"
    for path in sorted(paths):
        if path not in sizes:
            return f"file '{path}' is new"
    return "the files are in another order"
