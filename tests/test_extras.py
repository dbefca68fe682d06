"""A missing library is named with the extra that installs it."""

import subprocess
import sys

import pytest

from helpers import refused
from hydraulis.extras import import_extra, require_torch


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    # An earlier test may have loaded it.
    monkeypatch.delitem(sys.modules, "pyarrow.ipc", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with refused("extra_missing", "reading columns", "'pyarrow'", "pip install 'hydraulis[data]'"):
        import_extra("pyarrow.ipc", "reading columns")
    with refused("extra_missing", "training", "'torch'", "pip install 'hydraulis[train]'"):
        require_torch("training")


def test_looking_for_torch_does_not_load_it() -> None:
    code = (
        "import sys; from hydraulis.extras import require_torch; require_torch('this'); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
