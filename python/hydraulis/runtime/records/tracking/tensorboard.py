"""Writes event files for TensorBoard."""

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from hydraulis.extras import import_extra
from hydraulis.runtime.records.run_directory import writing


class TensorBoard:
    """Writes event files, which `tensorboard --logdir` shows.

    Args:
        folder: Folder of the files; it is created if it is absent.
        completed: Completed iterations at the start; values logged earlier for later steps are hidden.

    Raises:
        HydraulisError: Tensorboard is not installed (code `extra_missing`), or its files cannot be created
            (`file_unwritable`).
    """

    def __init__(self, folder: Path, completed: int) -> None:
        hidden_from = completed + 1 if completed else None
        library = require_tensorboard()
        self._folder = folder
        with writing(folder):
            self._writer = library.SummaryWriter(str(folder), purge_step=hidden_from)

    def log(self, step: int, values: Mapping[str, float | str]) -> None:
        """Append a scalar for each number, and a text for each string.

        Raises:
            HydraulisError: The values cannot be written (code `file_unwritable`).
        """
        with writing(self._folder):
            for name, value in values.items():
                if isinstance(value, str):
                    self._writer.add_text(name, value, step)
                else:
                    self._writer.add_scalar(name, value, step)
            self._writer.flush()

    def close(self) -> None:
        """Close the files.

        Raises:
            HydraulisError: The files cannot be written (code `file_unwritable`).
        """
        with writing(self._folder):
            self._writer.close()


def require_tensorboard() -> ModuleType:
    """Import torch's writer of event files.

    Raises:
        HydraulisError: Tensorboard is not installed (code `extra_missing`).
    """
    import_extra("tensorboard", "output.tensorboard", "track")
    return import_extra("torch.utils.tensorboard", "output.tensorboard", "track")
