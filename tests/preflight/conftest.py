from pathlib import Path

import pytest

from preflight.checked_run import write_checked_run


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run to check, without an index."""
    path = tmp_path_factory.mktemp("preflight")
    write_checked_run(path)
    return path
