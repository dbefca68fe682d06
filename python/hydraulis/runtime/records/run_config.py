"""The effective configuration in a run's folder, and what a resumed run changes in it."""

import json
from collections.abc import Iterator
from pathlib import Path

from hydraulis.config.run import RunConfig, to_dict
from hydraulis.files import read_regular
from hydraulis.runtime.records.run_directory import RUN_CONFIG, RunDirectory, write_replacing
from hydraulis.text.documents import parse_json
from hydraulis.text.values import as_short_json

# They say where a run reads and writes, and not what it trains.
_PLACES = {("checkpoint", "resume"), ("output", "directory")}


def changed_settings(run: Path, config: RunConfig) -> list[str]:
    """Describe the settings that differ from those in a run's folder; none if that has no readable file.

    Args:
        run: The run's folder.
        config: Configuration that resumes the run.
    """
    try:
        before = parse_json(read_regular(run / RUN_CONFIG).decode())
        return list(_changes(before, json.loads(json.dumps(to_dict(config)))))
    except (OSError, ValueError, AttributeError):
        return []


def write_config(directory: RunDirectory, config: RunConfig, completed: int) -> None:
    """Write the configuration; one of earlier steps with other settings becomes `config-STEP.json` first.

    Args:
        directory: Folder of the run.
        config: Configuration of all further steps.
        completed: Number of completed steps; 0 at the start of a run.

    Raises:
        HydraulisError: A file cannot be written (code `file_unwritable`).
    """
    text = json.dumps(to_dict(config), indent=2) + "\n"
    if completed and changed_settings(directory.path, config):
        write_replacing(directory, RUN_CONFIG, text.encode(), completed)
    else:
        directory.write(RUN_CONFIG, text)


def _changes(before: dict[str, dict[str, object]], now: dict[str, dict[str, object]]) -> Iterator[str]:
    for section, keys in now.items():
        for key, value in keys.items():
            old = before.get(section, {}).get(key)
            if old != value and (section, key) not in _PLACES:
                yield f"{section}.{key} = {as_short_json(value)}, before {as_short_json(old)}"
