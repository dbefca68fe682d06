"""The effective configuration in a run's folder, and what a resumed run changes in it."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hydraulis.config.run import RunConfig, to_dict
from hydraulis.files import read_regular
from hydraulis.runtime.records.replaced_files import write_replacing
from hydraulis.runtime.records.run_directory import RUN_CONFIG, RunDirectory
from hydraulis.text.documents import parse_json
from hydraulis.text.values import as_short_json

# A run trains alike wherever it reads and writes.
_PLACES = {"checkpoint.resume", "output.directory"}
# What a start takes from its device where the configuration leaves it open.
_OF_DEVICES = {"planner.memory_mib"}


def changed_settings(path: Path, config: RunConfig) -> list[str]:
    """Describe the settings that differ from those in a file; none if that cannot be read.

    A setting that the file lacks, such as one of a later version, does not count.

    Args:
        path: File with an effective configuration.
        config: Configuration to compare it with.
    """
    try:
        before = parse_json(read_regular(path).decode())
        return list(_changes(before, to_dict(config)))
    except (OSError, ValueError, AttributeError, TypeError):
        return []


def write_config(directory: RunDirectory, config: RunConfig, completed: int) -> None:
    """Write the configuration; one of earlier steps with other settings is kept (see `write_replacing`).

    Args:
        directory: Folder of the run.
        config: Configuration of all further steps.
        completed: Number of completed steps; 0 at the start of a run.

    Raises:
        HydraulisError: A file cannot be written (code `file_unwritable`).
    """
    text = (json.dumps(to_dict(config), indent=2) + "\n").encode()
    write_replacing(directory, RUN_CONFIG, text, completed, _have_same_settings)


def _have_same_settings(one: bytes, other: bytes) -> bool:
    try:
        return not any(_changes(json.loads(one), json.loads(other)))
    except (ValueError, AttributeError, TypeError):
        return one == other


def _changes(before: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for section, keys in json.loads(json.dumps(now)).items():
        for key, value in keys.items():
            name, known = f"{section}.{key}", before.get(section, {})
            if key in known and known[key] != value and name not in _PLACES | _OF_DEVICES:
                yield f"{name} = {_shown(value)}, before {_shown(known[key])}"


def _shown(value: object) -> str:
    return "absent" if value is None else as_short_json(value)
