"""Libraries that are not there are named, with what brings them."""

import subprocess
import sys

import pytest

from hydraulis.errors import HydraulisError
from hydraulis.extras import import_extra, require_torch


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    # Else a test before this one may have loaded it.
    monkeypatch.delitem(sys.modules, "pyarrow.ipc", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    says = r"reading .* needs the library 'pyarrow', .*: pip install 'hydraulis\[data\]'"
    with pytest.raises(HydraulisError, match=says) as refusal:
        import_extra("pyarrow.ipc", "reading columns")
    assert refusal.value.code == "extra_missing"
    says = r"training needs the library 'torch', which is not installed; .*: pip install 'hydraulis\[train\]'"
    with pytest.raises(HydraulisError, match=says) as refusal:
        require_torch("training")
    assert refusal.value.code == "extra_missing"


def test_looking_for_torch_does_not_load_it() -> None:
    code = (
        "import sys; from hydraulis.extras import require_torch; require_torch('this'); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
