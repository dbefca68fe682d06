"""The files of a source, from its paths, globs and folders."""

import glob
from collections.abc import Iterator, Sequence
from pathlib import Path

from hydraulis.data.records.record_file import RECORD_ENDINGS, is_record_file
from hydraulis.data.sources.token_files import MEGATRON_SUFFIXES, is_token_file
from hydraulis.errors import InvalidInputError
from hydraulis.text.documents import parse_json


def find_source_files(names: Sequence[str], key: str = "data.sources.files") -> list[Path]:
    """Find the files of paths, globs and folders, each once under the first of its names.

    A folder must be one that Hugging Face's datasets saved; its files are in its stated order. The files of a
    glob are in the order of their names. A Megatron data set may be named without an ending, and is
    represented by its `.idx` file.

    Args:
        names: Paths, globs and folders.
        key: Key of the configuration that has them, for messages.

    Raises:
        InvalidInputError: A name matches nothing or cannot be looked up (code `file_unreadable`), a folder is
            no saved data set or one without files, or a file has an unknown format or is no regular file,
            such as a pipe (`data_file_invalid`).
    """
    found: dict[Path, Path] = {}
    for name in names:
        try:
            files = _files(name, key)
        except OSError as error:
            message = f"{key}: '{name}' cannot be read ({error.strerror}); check the path"
            raise InvalidInputError(message, code="file_unreadable") from error
        for file in files:
            # Another name, or a link, leads to the same file.
            found.setdefault(file.resolve(), file)
    return list(found.values())


def _files(name: str, key: str) -> list[Path]:
    """Find the files of one name.

    Raises:
        OSError: The system refuses the name.
    """
    paths = [Path(name)] if Path(name).exists() else _matching(name) or _megatron(name)
    if not paths:
        where = "" if Path(name).is_absolute() else f" in {Path.cwd()}"
        message = f"{key}: no file or folder matches '{name}'{where}; check the path, or the glob"
        raise InvalidInputError(message, code="file_unreadable")
    return [_checked(file) for path in paths for file in (_saved_files(path) if path.is_dir() else (path,))]


def _matching(pattern: str) -> list[Path]:
    # Path.glob takes no absolute patterns.
    return [Path(path) for path in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207


def _megatron(prefix: str) -> list[Path]:
    """Return the files of a Megatron data set without their endings, as Megatron names a data set."""
    return [path for suffix in MEGATRON_SUFFIXES if (path := Path(prefix + suffix)).exists()]


def _checked(path: Path) -> Path:
    if path.suffix in MEGATRON_SUFFIXES:
        path = path.with_suffix(".idx")
    # A pipe would block the reader, and could be read only once.
    if path.exists() and not path.is_file():
        message = f"'{path}' is no regular file; write its content to one"
        raise InvalidInputError(message, code="data_file_invalid")
    if not is_token_file(path) and not is_record_file(path):
        message = (
            f"file '{path}' has an unknown format: the endings are {RECORD_ENDINGS}, .npy, .bin and .idx; "
            "convert it"
        )
        raise InvalidInputError(message, code="data_file_invalid")
    return path


def _saved_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder written by `Dataset.save_to_disk`."""
    if (folder / "dataset_dict.json").exists():
        message = f"folder '{folder}' has several splits{_splits(folder)}: name the folder of one of them"
        raise InvalidInputError(message, code="data_file_invalid")
    try:
        state = parse_json((folder / "state.json").read_text(encoding="utf-8"))
        files = [folder / one["filename"] for one in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = (
            f"folder '{folder}' is no data set that Hugging Face's datasets saved ({error}): name its files, "
            "such as 'folder/*.jsonl'"
        )
        raise InvalidInputError(message, code="data_file_invalid") from error
    if state.get("_indices_files") or state.get("_indices_data_files"):
        message = f"folder '{folder}' has a selection of its rows: call flatten_indices() and save it again"
        raise InvalidInputError(message, code="data_file_invalid")
    if not files:
        message = f"folder '{folder}' is a saved data set without files: leave it out, or save it again"
        raise InvalidInputError(message, code="data_file_invalid")
    yield from files


def _splits(folder: Path) -> str:
    """Return the names of the splits in a folder for a message; empty if they cannot be read."""
    try:
        splits = parse_json((folder / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]
        return f" ({', '.join(splits)})"
    except (OSError, ValueError, LookupError, TypeError):
        return ""
